"""For `pytest --nbval solutions`; our own tests do without nbval, whose import takes a second."""

pytest_plugins = ["nbval.plugin"]
