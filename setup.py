"""What pyproject.toml cannot say: the kernel knows nothing of Python, so that one wheel is for all."""

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext


class PlainLibrary(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        return fullname.replace(".", "/") + ".so"


class AnyPython(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_ext": PlainLibrary, "bdist_wheel": AnyPython})
