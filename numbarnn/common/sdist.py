"""Contents of the sdist; pyproject.toml tells setuptools to use this. Nothing else imports it."""

from setuptools.command.sdist import sdist


class Sdist(sdist):
    """An sdist without tests: setuptools would add tests/test*.py by itself, without the folders that they import.
    MANIFEST.in could say so too, at the top level of the repository. Tests belong to a clone."""

    def make_distribution(self):
        self.filelist.prune("tests")
        super().make_distribution()
