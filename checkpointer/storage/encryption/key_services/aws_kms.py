"""Wrap keys by AWS KMS.

A text names the key as `aws-kms:alias/NAME`, or by the ARN of a key or an alias.

`Encrypt` and `Decrypt` have an encryption context, which the service binds, logs, and can demand in a policy. What
KMS makes of a key by rotation opens all that it wrapped before.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError
from pyspark_checkpointer.storage.connection import require
from pyspark_checkpointer.storage.encryption.key_providers import UnwrapError
from pyspark_checkpointer.storage.encryption.key_services.refusals import (
    PURPOSE,
    no_credentials,
    no_key,
    no_permission,
    throttled,
    unreachable,
    unusable_key,
)

_ARN = r"arn:aws[a-z-]*:kms:(?P<region>[a-z0-9-]+):[0-9]{12}:"
_NAME = re.compile(rf"(?:{_ARN})?alias/[\w/-]+|{_ARN.replace('?P<region>', '')}key/[\w-]+", re.ASCII)
_KEY = re.compile(rf"{_ARN}key/(?P<multi_region>mrk-)?")

_CONTEXT = {"purpose": PURPOSE}

_DENIED = {"AccessDeniedException", "AccessDenied", "403"}
_OTHER_KEY = {"InvalidCiphertextException", "IncorrectKeyException"}
_UNUSABLE = {"DisabledException", "KMSInvalidStateException", "InvalidKeyUsageException"}
_BUSY = {"ThrottlingException", "LimitExceededException"}
_DOWN = {"KMSInternalException", "DependencyTimeoutException", "KeyUnavailableException"}
_LOGIN = "give them as for all of AWS, such as AWS_ACCESS_KEY_ID, AWS_PROFILE or the role of the machine"


@dataclass(frozen=True, slots=True)
class AwsKms:
    """A symmetric key of AWS KMS."""

    name: str

    provider = "aws-kms"
    form = "alias/NAME|ARN"

    @classmethod
    def named(cls, name: str) -> "AwsKms | None":
        """Return the provider of a key; None for a text that names none."""
        if not _NAME.fullmatch(name):
            return None
        require("botocore", cls.provider, cls.provider)
        return cls(name)

    @property
    def key(self) -> str:
        """Return the ARN of the key, which stays when its alias is given to another key.

        A key of several regions has the same name in all of them: any of its replicas opens what another one wrapped.
        """
        found = _KEY.match(self.name)
        arn = self.name if found else self._arn()
        found = _KEY.match(arn)
        return arn.replace(f":{found['region']}:", ":*:") if found and found["multi_region"] else arn

    def wrap(self, data: bytes) -> bytes:
        with self._asked() as kms:
            found: bytes = kms.encrypt(KeyId=self.name, Plaintext=data, EncryptionContext=_CONTEXT)["CiphertextBlob"]
        return found

    def unwrap(self, wrapped: bytes) -> bytes:
        # With its name: KMS opens nothing then that another key wrapped, though this identity might use that one too.
        with self._asked(opens=True) as kms:
            found: bytes = kms.decrypt(KeyId=self.name, CiphertextBlob=wrapped, EncryptionContext=_CONTEXT)["Plaintext"]
        return found

    def _arn(self) -> str:
        with self._asked() as kms:
            found: str = kms.describe_key(KeyId=self.name)["KeyMetadata"]["Arn"]
        return found

    @contextmanager
    def _asked(self, opens: bool = False) -> Iterator[Any]:
        """Yield a client of KMS, and turn its errors into those of the tree.

        If it `opens` what was wrapped, raises `UnwrapError` where another key wrapped it or it was changed.
        """
        # Imported here, because the package is optional.
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        found = re.match(_ARN, self.name)
        limits = Config(connect_timeout=5, read_timeout=20, retries={"mode": "standard", "total_max_attempts": 3})
        try:
            session = botocore.session.get_session()
            yield session.create_client("kms", region_name=found["region"] if found else None, config=limits)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            said = str(error.response.get("Error", {}).get("Message", ""))
            # The second is for bytes that name a key which is not there, or which this identity may not use: that is
            # refused without the words that name what is missing, as it is for the provider's own key.
            if opens and (code in _OTHER_KEY or (code == "AccessDeniedException" and "not authorized" not in said)):
                raise UnwrapError from None
            raise self._refusal(code) from None
        except BotoCoreError as error:
            raise self._without_answer(error) from None
        except ValueError:  # A setting in the environment, such as an endpoint, which may have a password.
            raise self._without_answer(None) from None

    def _refusal(self, code: str) -> CheckpointError:
        name = f"{self.provider}:{self.name}"
        if code == "NotFoundException":
            return no_key(name)
        if code in _DENIED:
            return no_permission(name, code, "kms:Encrypt, kms:Decrypt and kms:DescribeKey for the key")
        if code in _UNUSABLE:
            return unusable_key(name, code, "enable it, or choose a symmetric key for encryption")
        if code in _BUSY:
            return throttled(name, code)
        return unreachable(name, code) if code in _DOWN or code.isdigit() else no_credentials(name, f"{code}: {_LOGIN}")

    def _without_answer(self, error: Exception | None) -> CheckpointError:
        # Imported here, because the package is optional.
        from botocore import exceptions as boto

        name, kind = f"{self.provider}:{self.name}", type(error).__name__
        if isinstance(error, boto.NoRegionError):
            return IllegalArgumentError(f"{name}: the region is unknown: set AWS_DEFAULT_REGION, or give the ARN")
        if isinstance(error, boto.ConnectionError | boto.HTTPClientError):
            return unreachable(name, kind)
        return no_credentials(name, f"{kind}: {_LOGIN}" if error else _LOGIN)


__all__ = ["AwsKms"]
