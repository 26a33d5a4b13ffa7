"""What is left of Serve's message for a person."""

from cluster.deploy import replica_error

MESSAGE = """The deployment failed to start 2 times in a row. Error:
\x1b[36mray::ServeReplica:x.initialize_and_get_metadata()\x1b[39m (pid=1, ip=10.0.0.1)
  File "/x/replica.py", line 1, in f
    raise RuntimeError(traceback.format_exc()) from None
RuntimeError: Traceback (most recent call last):
  File "/x/engine.py", line 2, in g
    raise ValueError("inner")
ValueError: 1 validation error for ModelConfig
  Value error, Unknown quantization: gguf. [type=value_error, input_value=A(()), input_type=A]
    For further information visit https://errors.example/2/v/value_error
"""


def test_the_last_error_is_told_without_what_surrounds_it() -> None:
    """The innermost exception, its lines and its place; no traceback, no pydantic noise."""
    assert replica_error(MESSAGE) == (
        "ValueError: 1 validation error for ModelConfig\n"
        "  Value error, Unknown quantization: gguf.\n"
        "(raised in g, /x/engine.py:2)"
    )


def test_a_message_without_an_exception_is_told_as_it_is() -> None:
    """Serve's own words stay."""
    assert replica_error("No node has 8 CPUs.\n") == "No node has 8 CPUs."
