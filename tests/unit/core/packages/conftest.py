from tests.unit.ci.conftest import common, lab, outputs, publish, record_of, store

__all__ = ["common", "lab", "outputs", "publish", "record_of", "store"]
