"""Ask key services to wrap the keys of a root.

There is a file for each service, and `../key_registry.py` names the providers.

* `aws_kms.py`, `azure_key_vault.py`, `google_kms.py` and `vault.py` wrap the keys of a root by one request, and open
  them by one or two;
* `https.py` sends a request and turns what goes wrong into errors of the tree;
* `refusals.py` has what all of them say where a service refuses.

A provider holds the name of its key and nothing else. Credentials come from the environment of the service, at each
call.
"""
