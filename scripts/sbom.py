"""Write the bill of materials of a wheel, in CycloneDX: what its base and its extras bring, with versions and digests.

It is of what pip chooses on this Python from the packages that were there when the commit was made. Two runs write the
same bytes: the time is that of the commit, the serial number is made of the wheel's digest, and the library sorts.
"""

import hashlib
import json
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator
from dependencies import follow
from packageurl import PackageURL
from packaging.utils import canonicalize_name

VERSION = SchemaVersion.V1_6


def resolve(python: Path, wheel: Path, extras: list[str], epoch: int) -> dict[str, Any]:
    """Return pip's report of what it would install for the wheel with all its extras."""
    until = datetime.fromtimestamp(epoch, UTC).isoformat()
    command: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--quiet",
        "--report",
        "-",
    ]
    wanted = f"{wheel}[{','.join(extras)}]"
    done = subprocess.run(
        [*command, "--uploaded-prior-to", until, wanted], stdout=subprocess.PIPE, check=True, text=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def describe(report: Mapping[str, Any], wheel: Path, epoch: int) -> str:
    """Return the bill of materials of a wheel as JSON.

    Raises `ValueError` if it is not valid CycloneDX, or if a package is one that users do not get.
    """
    packages: dict[str, Any] = {canonicalize_name(one["metadata"]["name"]): one for one in report["install"]}
    (name,) = (name for name, one in packages.items() if one["is_direct"])
    local = [one for one in packages if one != name and packages[one]["download_info"]["url"].startswith("file:")]
    if local:
        raise ValueError(f"{', '.join(local)}: found in a folder and not in the index; unset find-links of pip")
    brought = {extra: _follow(packages, name, [extra]) for extra in sorted(packages[name]["requested_extras"])}
    base = _follow(packages, name, [])
    components: dict[str, Component] = {
        one: _component(packages[one], one in base, [extra for extra, names in brought.items() if one in names])
        for one in packages
    }
    components[name].hashes = [HashType(alg=HashAlgorithm.SHA_256, content=_digest(wheel))]
    components[name].scope = None
    bom = Bom(
        components=[component for one, component in components.items() if one != name],
        serial_number=uuid5(NAMESPACE_URL, f"{components[name].purl}#{_digest(wheel)}"),
        metadata=BomMetaData(
            component=components[name],
            timestamp=datetime.fromtimestamp(epoch, UTC),
            properties=list(_surroundings(report)),
        ),
    )
    for one, needed in _follow(packages, name, list(brought)).items():
        bom.register_dependency(components[one], [components[other] for other in needed])
    text = make_outputter(bom, OutputFormat.JSON, VERSION).output_as_string(indent=2) + "\n"
    wrong = make_schemabased_validator(OutputFormat.JSON, VERSION).validate_str(text)
    if wrong is not None:
        raise ValueError(f"the bill of materials is no valid CycloneDX {VERSION.to_version()}: {wrong}")
    return text


def _follow(packages: Mapping[str, Any], name: str, extras: list[str]) -> dict[str, set[str]]:
    return follow(name, extras, lambda one: packages[one]["metadata"].get("requires_dist"))


def _component(package: Mapping[str, Any], in_base: bool, extras: list[str]) -> Component:
    metadata = package["metadata"]
    name, version = canonicalize_name(metadata["name"]), metadata["version"]
    purl = PackageURL("pypi", None, name, version)
    terms = metadata.get("license_expression") or metadata.get("license") or ""
    return Component(
        type=ComponentType.LIBRARY,
        name=name,
        version=version,
        bom_ref=str(purl),
        purl=purl,
        scope=ComponentScope.REQUIRED if in_base else ComponentScope.OPTIONAL,
        hashes=[
            HashType(alg=HashAlgorithm.SHA_256, content=package["download_info"]["archive_info"]["hashes"]["sha256"])
        ],
        # Some packages have the whole text there.
        licenses=[LicenseFactory().make_from_string(terms)] if terms and "\n" not in terms else [],
        properties=[Property(name="extra", value=extra) for extra in extras],
    )


def _surroundings(report: Mapping[str, Any]) -> Iterator[Property]:
    """Yield what pip's choice depends on, beside the day."""
    yield Property(name="pip", value=report["pip_version"])
    for name in ("implementation_name", "python_version", "sys_platform", "platform_machine"):
        yield Property(name=name, value=report["environment"][name])


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
