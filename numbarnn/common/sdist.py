"""What the sdist holds; pyproject.toml tells setuptools of it. Nothing else imports this."""

from setuptools.command.sdist import sdist


class Sdist(sdist):
    """Without tests: setuptools would take tests/test*.py by itself, and not the folders that they import from.

    MANIFEST.in could say so, if the top level of the repository were to have one. Tests belong to a clone.
    """

    def make_distribution(self):
        self.filelist.prune("tests")
        super().make_distribution()
