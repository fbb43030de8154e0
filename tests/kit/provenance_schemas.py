"""Whether statements and bills are what their schemas say, by the libraries of those who made the schemas."""

import json

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf.json_format import Parse, ParseDict
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement

from ci.provenance.statements import PREDICATE_TYPE


def validate_statement(content: bytes) -> None:
    """Hold a statement against in-toto's Statement v1, and its predicate against SLSA's provenance v1.

    Raises:
        ParseError: A field is unknown, or of another type.
        ValueError: A field is missing.
    """
    whole = statement_pb2.Statement()
    Parse(content, whole)
    Statement.copy_from_pb(whole).validate()
    assert whole.predicate_type == PREDICATE_TYPE
    provenance = provenance_pb2.Provenance()
    ParseDict(json.loads(content)["predicate"], provenance)
    assert provenance.build_definition.build_type
    assert provenance.run_details.builder.id
    used = provenance.build_definition.resolved_dependencies
    for one in (*used, *provenance.run_details.byproducts):
        ResourceDescriptor.copy_from_pb(one).validate()
    began, ended = provenance.run_details.metadata.started_on, provenance.run_details.metadata.finished_on
    assert 0 < began.seconds <= ended.seconds


def problems_of_bill(content: bytes) -> str:
    """Hold a bill of materials against CycloneDX 1.6, formats included; "" where it is one."""
    found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(content.decode())
    return str(found) if found else ""
