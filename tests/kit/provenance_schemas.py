"""Whether statements and bills are what their schemas say, by the libraries of those who made the schemas.

The libraries take seconds to import, so only the tests that use them pay for it, and not the collection.
"""

import json
import re
import sys
from unittest.mock import patch

from ci.provenance.statements import PREDICATE_TYPE

# Any character but spaces, controls and those that must be escaped; an escape is two hex digits.
IRI_REFERENCE = re.compile(r"""(?:[^\x00-\x20\x7f<>"{}|\\^`%]|%[0-9A-Fa-f]{2})*""")


def validate_statement(content: bytes) -> None:
    """Hold a statement against in-toto's Statement v1, and its predicate against SLSA's provenance v1.

    Raises:
        ParseError: A field is unknown, or of another type.
        ValueError: A field is missing.
    """
    from google.protobuf.json_format import Parse, ParseDict
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
    from in_toto_attestation.v1.statement import Statement

    statement = statement_pb2.Statement()
    Parse(content, statement)
    Statement.copy_from_pb(statement).validate()
    assert statement.predicate_type == PREDICATE_TYPE

    provenance = provenance_pb2.Provenance()
    ParseDict(json.loads(content)["predicate"], provenance)
    assert provenance.build_definition.build_type
    assert provenance.run_details.builder.id

    dependencies = provenance.build_definition.resolved_dependencies
    for descriptor in (*dependencies, *provenance.run_details.byproducts):
        ResourceDescriptor.copy_from_pb(descriptor).validate()

    metadata = provenance.run_details.metadata
    assert 0 < metadata.started_on.seconds <= metadata.finished_on.seconds


def problems_of_bill(content: bytes) -> str:
    """Return why a bill of materials is not CycloneDX 1.6, formats included; "" where it is."""
    # The grammar by which jsonschema reads addresses takes three seconds to import and half a second a bill.
    with patch.dict(sys.modules, {"rfc3987_syntax": None}):
        from cyclonedx.schema import SchemaVersion
        from cyclonedx.validation.json import JsonStrictValidator
        from jsonschema.validators import Draft7Validator  # type: ignore[import-untyped]

    Draft7Validator.FORMAT_CHECKER.checks("iri-reference")(is_iri_reference)
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(content.decode())
    return "" if problem is None else str(problem)


def is_iri_reference(value: object) -> bool:
    """Return whether a value is an address or a path, by the characters that RFC 3987 allows."""
    return not isinstance(value, str) or IRI_REFERENCE.fullmatch(value) is not None
