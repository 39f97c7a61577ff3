// Goroutines, channels, timers, garbage collection and an HTTP server; judges itself at SIGTERM.
//
// Usage: goserver FOLDER PORT. GET /next: one more than the last time. GET /state: counters that only ever grow.
package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const ringSize = 200

var (
	tokens, ticks, garbage, lines, next, problems atomic.Int64
	stop                                          = make(chan struct{})
	workers                                       sync.WaitGroup
)

func expect(good bool, format string, values ...any) {
	if !good {
		problems.Add(1)
		fmt.Fprintf(os.Stderr, format+"\n", values...)
	}
}

// One token goes round a ring of goroutines, and grows by one in each.
func ring() {
	first := make(chan int64)
	from := first
	for range ringSize {
		to := make(chan int64)
		go func(from, to chan int64) {
			for number := range from {
				to <- number + 1
			}
			close(to)
		}(from, to)
		from = to
	}
	for number := int64(0); ; {
		select {
		case <-stop:
			close(first)
			return
		case first <- number:
			back := <-from
			expect(back == number+ringSize, "the token is %d after %d", back, number)
			number = back
			tokens.Add(1)
			time.Sleep(100 * time.Microsecond)
		}
	}
}

func tick() {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case <-ticker.C:
			ticks.Add(1)
		}
	}
}

// Fills maps and throws them away, so that the collector runs in its own threads.
func litter() {
	for round := int64(0); ; round++ {
		select {
		case <-stop:
			return
		default:
		}
		box := make(map[int64]string)
		for key := range int64(2000) {
			box[key] = fmt.Sprint(key * round)
		}
		for key, text := range box {
			expect(text == fmt.Sprint(key*round), "%d of round %d is %s", key, round, text)
		}
		garbage.Add(1)
		time.Sleep(time.Millisecond)
	}
}

func write(path string) {
	file, err := os.Create(path)
	expect(err == nil, "create: %v", err)
	for running := true; running; {
		_, err = fmt.Fprintf(file, "%d\n", lines.Add(1))
		expect(err == nil, "write: %v", err)
		select {
		case <-stop:
			running = false
		case <-time.After(time.Millisecond):
		}
	}
	expect(file.Close() == nil, "close")
	text, err := os.ReadFile(path)
	expect(err == nil, "read: %v", err)
	found := strings.Fields(string(text))
	expect(int64(len(found)) == lines.Load(), "%d lines of %d", len(found), lines.Load())
	for index, line := range found {
		expect(line == fmt.Sprint(index+1), "line %d is %s", index+1, line)
	}
}

func serve(port string) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/next", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, next.Add(1)) })
	mux.HandleFunc("/state", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, problems.Load(), tokens.Load(), ticks.Load(), garbage.Load(), lines.Load())
	})
	listener, err := net.Listen("tcp", "127.0.0.1:"+port)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	server := &http.Server{Handler: mux}
	go server.Serve(listener)
	return server
}

func main() {
	folder, port := os.Args[1], os.Args[2]
	runtime.GOMAXPROCS(4)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	for _, work := range []func(){ring, tick, litter, litter, func() { write(filepath.Join(folder, "lines")) }} {
		workers.Add(1)
		go func() {
			defer workers.Done()
			work()
		}()
	}
	server := serve(port)
	<-ended
	close(stop)
	workers.Wait()
	patience, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	expect(server.Shutdown(patience) == nil, "shutdown")
	fmt.Println("judged", tokens.Load(), ticks.Load(), garbage.Load(), lines.Load())
	if problems.Load() > 0 {
		os.Exit(1)
	}
}
