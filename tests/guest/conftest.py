from tests.environment.conftest import venv

__all__ = ["venv"]
