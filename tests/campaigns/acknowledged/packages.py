"""Installs the packages of the servers: from Debian, from PyPI and from Maven Central."""
import os
import subprocess
import sys

from lib import suite

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>undying</groupId><artifactId>servers</artifactId><version>1</version><dependencies>
<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version></dependency>
</dependencies></project>
"""


def install(kinds, folder):
    """Installs the missing packages of these servers. Python and Maven packages go to `folder`."""
    if missing := suite.missing_packages(kinds):
        suite.install(missing)
    os.makedirs(folder, exist_ok=True)
    for kind in (kind for kind in kinds if kind.lacking() and not suite.lacks(kind)):
        for module in kind.modules:
            quiet_run(sys.executable, "-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--target", folder, module)
        for artifact in kind.artifacts:
            path = os.path.join(folder, "pom.xml")
            with open(path, "w") as file:
                file.write(POM.format(*artifact.split(":")))
            quiet_run("mvn", "--quiet", "--batch-mode", "--file", path, "dependency:copy-dependencies",
                      "-DoutputDirectory=" + os.path.join(folder, artifact.split(":")[1]))


def quiet_run(*words):
    subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
