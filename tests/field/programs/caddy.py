"""caddy, a web server in Go, with an access log and without its admin interface."""
from lib.program import WebService

CONFIGURATION = """
{{
  admin off
  auto_https off
}}
http://127.0.0.1:{port} {{
  root * {folder}/www
  file_server
  log {{
    output file {folder}/access.log
  }}
}}
"""


class Caddy(WebService):
    name, group = "caddy", "server"
    needs = {"caddy": "caddy"}

    def prepare(self):
        self.write("www/page.txt", "field\n")
        self.write("Caddyfile", CONFIGURATION.format(folder=self.folder, port=self.port))

    def environment(self):
        return {"XDG_DATA_HOME": self.path("data"), "XDG_CONFIG_HOME": self.path("config"), "HOME": self.folder}

    def command(self):
        return ["caddy", "run", "--config", self.path("Caddyfile"), "--adapter", "caddyfile"]
