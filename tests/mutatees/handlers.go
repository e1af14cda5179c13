// An HTTP server in Go that times its own handler, and its clients.
//
// go N              8 clients make N requests each
//
// Prints `tally main.handle CALLS` and `ns main.handle SUM`.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var calls, ns, wrong int64

//go:noinline
func part(text string, answers chan int) {
	time.Sleep(200 * time.Microsecond)
	answers <- len(strings.ToUpper(text))
}

//go:noinline
func handle(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	answers := make(chan int, 4)
	for i := 0; i < 4; i++ {
		go part(r.URL.Path, answers)
	}
	total := 0
	for i := 0; i < 4; i++ {
		total += <-answers
	}
	fmt.Fprintf(w, "ok %d", total)
	atomic.AddInt64(&ns, int64(time.Since(begin)))
	atomic.AddInt64(&calls, 1)
}

func request(address string) {
	answer, err := http.Get(address)
	if err != nil {
		atomic.AddInt64(&wrong, 1)
		return
	}
	text, _ := io.ReadAll(answer.Body)
	answer.Body.Close()
	if string(text) != "ok 24" {
		atomic.AddInt64(&wrong, 1)
	}
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	http.HandleFunc("/", handle)
	go http.Serve(listener, nil)
	address := fmt.Sprintf("http://%s/hello", listener.Addr())
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var n int
		if _, err := fmt.Sscanf(in.Text(), "go %d", &n); err == nil {
			var group sync.WaitGroup
			for client := 0; client < 8; client++ {
				group.Add(1)
				go func() {
					defer group.Done()
					for i := 0; i < n; i++ {
						request(address)
					}
				}()
			}
			group.Wait()
		} else {
			fmt.Println("unknown command", in.Text())
		}
		// A handler answers before it has taken its own time.
		time.Sleep(50 * time.Millisecond)
		fmt.Printf("tally main.handle %d\nns main.handle %d\nwrong %d\ndone\n", atomic.LoadInt64(&calls), atomic.LoadInt64(&ns), wrong)
	}
}
