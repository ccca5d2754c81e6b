"""The course: exercises and their checks, predictions, progress, and how labs are built and run."""
