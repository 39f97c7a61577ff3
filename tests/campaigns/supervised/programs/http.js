// An HTTP server: answers each request with one page. `node http.js PORT PAGE`.
const http = require("node:http");
const fs = require("node:fs");

const page = fs.readFileSync(process.argv[3]);
const server = http.createServer((_request, response) => {
  response.writeHead(200, { "Content-Type": "text/plain", "Content-Length": page.length });
  response.end(page);
});
// A kept connection ends with the server, not by itself.
server.keepAliveTimeout = 0;
server.listen(Number(process.argv[2]), "127.0.0.1");
