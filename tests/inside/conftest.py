from tests.capture.conftest import venv

__all__ = ["venv"]
