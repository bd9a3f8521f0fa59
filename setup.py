"""Builds wheels: one without native parts runs on every machine, and says so by its tag."""

from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class TaggedWheel(bdist_wheel):
    """A wheel whose tag tells what is in it. All extension modules are optional."""

    def run(self) -> None:
        self.run_command("build")
        modules = self.get_finalized_command("build_ext").get_outputs()
        if not any(Path(module).exists() for module in modules):
            self.distribution.ext_modules = []
            self.root_is_pure = True
        super().run()


setup(cmdclass={"bdist_wheel": TaggedWheel})
