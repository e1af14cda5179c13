// A web server in Go: eight goroutines for each request, which end; garbage is collected all the time. Prints `port N`.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"time"
)

func part(answers chan int) {
	sums := map[string]int{}
	for i := 0; i < 200; i++ {
		sums[fmt.Sprint(i%17)] += i
	}
	text, _ := json.Marshal(sums)
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	writer.Write(text)
	writer.Close()
	reader, _ := gzip.NewReader(&packed)
	text, _ = io.ReadAll(reader)
	answers <- len(text)
}

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Printf("port %d\n", listener.Addr().(*net.TCPAddr).Port)
	go func() {
		for {
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	}()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answers := make(chan int, 8)
		for i := 0; i < 8; i++ {
			go part(answers)
		}
		total := 0
		for i := 0; i < 8; i++ {
			total += <-answers
		}
		fmt.Fprintf(w, "ok %d", total)
	})
	panic(http.Serve(listener, nil))
}
