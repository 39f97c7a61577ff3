"""A server in Go that uses only the standard library. From Go 1.24, its listening socket is an MPTCP socket."""
from lib.program import Service, Wrong

SOURCE = r'''
package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

var lock sync.Mutex
var items []string

func serve(connection net.Conn) {
	defer connection.Close()
	lines := bufio.NewScanner(connection)
	for lines.Scan() {
		lock.Lock()
		if lines.Text() == "items" {
			fmt.Fprintf(connection, "%d\n", len(items))
			for _, item := range items {
				fmt.Fprintln(connection, item)
			}
		} else {
			items = append(items, lines.Text())
			fmt.Fprintln(connection, "ok")
		}
		lock.Unlock()
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() {
		for range time.Tick(time.Millisecond) {
			_ = make([]byte, 10000)
		}
	}()
	for {
		connection, err := listener.Accept()
		if err == nil {
			go serve(connection)
		}
	}
}
'''


class GoServer(Service):
    name, group = "go-server", "language"
    needs = {"go": "golang-go"}

    def prepare(self):
        source = self.write("main.go", SOURCE)
        self.tool("env", "GO111MODULE=off", "CGO_ENABLED=0",
                  "go", "build", "-o", self.path("server"), source, limit_s=100, what="go build")

    def version(self):
        return self.tool("go", "version").split()[2]

    limit_s = 180

    def command(self):
        return [self.path("server"), str(self.port)]

    def put(self, number):
        if (said := self.connection.ask(str(number))) != "ok":
            raise Wrong("the reply is %r" % said)

    def items(self):
        return [int(self.connection.line()) for _ in range(int(self.connection.ask("items")))]
