"""lighttpd with an access log."""
from lib.program import WebService

CONFIGURATION = """
server.modules = ("mod_accesslog")
server.document-root = "{folder}/www"
server.bind = "127.0.0.1"
server.port = {port}
server.errorlog = "{folder}/error.log"
accesslog.filename = "{folder}/access.log"
mimetype.assign = (".txt" => "text/plain")
"""


class Lighttpd(WebService):
    name, group = "lighttpd", "server"
    needs = {"lighttpd": "lighttpd"}

    def prepare(self):
        self.write("www/page.txt", "field\n")
        self.write("lighttpd.conf", CONFIGURATION.format(folder=self.folder, port=self.port))

    def command(self):
        return ["lighttpd", "-D", "-f", self.path("lighttpd.conf")]

    def items(self):
        """It writes its log from a buffer some seconds later; only the answers count."""
        return sorted(self.acknowledged)
