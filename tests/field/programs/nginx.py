"""nginx, a web server, with two workers and an access log."""
from lib.program import WebService

CONFIGURATION = """
daemon off; master_process on; worker_processes 2; user root;
pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{ listen 127.0.0.1:{port}; root {folder}/www; }}
}}
"""


class Nginx(WebService):
    name, group, quick = "nginx", "server", True
    needs = {"nginx": "nginx-light"}

    def prepare(self):
        self.write("www/page.txt", "field\n")
        self.write("nginx.conf", CONFIGURATION.format(folder=self.folder, port=self.port))

    def command(self):
        return ["nginx", "-p", self.folder, "-c", self.path("nginx.conf"), "-e", self.path("error.log")]
