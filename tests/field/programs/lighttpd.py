"""lighttpd, a web server, with an access log."""
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
        """Returns all acknowledged items. The access log is not compared, because lighttpd writes it seconds later."""
        return sorted(self.acknowledged)
