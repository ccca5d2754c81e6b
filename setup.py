"""Pack the course's files, which pyproject.toml cannot say: they lie beside the package, and a
wheel takes them into it, where `lockstep.base.paths` finds them."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
PACKED = ("labs/*.ipynb", "labs/LICENSE", "solutions/*.ipynb", "data/**/*")
PACKED += ("labs/step.py", "solutions/step.py")  # the capstone's program
PACKED += ("solutions/source/wrong/*.py",)  # checks compare with them


class WithTheCourse(build_py):
    def run(self):
        super().run()
        if self.editable_mode:  # reads the files where they are
            self.run_command("install_data")  # which setuptools leaves out
            return
        for file in (found for pattern in PACKED for found in ROOT.glob(pattern)):
            if file.is_file():
                target = Path(self.build_lib, "lockstep", "packed", file.relative_to(ROOT))
                self.mkpath(str(target.parent))
                self.copy_file(str(file), str(target), preserve_mode=False)


setup(cmdclass={"build_py": WithTheCourse})
