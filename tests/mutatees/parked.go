// A Go program whose goroutines end all the time and are suspended by signals in the middle of small functions.
//
// go N              N rounds: goroutines that end, loops in functions without a stack check, recovered panics, a loopback HTTP server
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

var wrong, ended, picked, scaled, fetched, recovered int64

// Leaf functions: no stack check, so the runtime may suspend a goroutine at their second instruction.

//go:noinline
func mix(a, b uint64) uint64 { return a*5 + b }

//go:noinline
func turn(a uint64) uint64 { return a<<7 ^ a>>3 }

//go:noinline
func pick(a []uint64, n uint64) uint64 { return a[n&63] }

//go:noinline
func scale(a, b uint64) uint64 { return a*b + a }

type pair struct{ a, b uint64 }

//go:noinline
func (p *pair) second() uint64 { return p.b }

//go:noinline
func sum(a []uint64) (s uint64) {
	for _, v := range a {
		s += v
	}
	return
}

func churn(n int) uint64 {
	var a [64]uint64
	x := uint64(n)
	for i := 0; i < 20000; i++ {
		x = mix(x, turn(x))
		a[i&63] = x
		x ^= pick(a[:], x)
	}
	return x ^ sum(a[:])
}

// The loop has no preemption point, so only a signal suspends it.
func spin(n, x uint64) uint64 {
	for i := uint64(0); i < n; i++ {
		x = mix(scale(x, i), turn(x))
	}
	return x
}

//go:noinline
func fault(p *pair) (value uint64) {
	defer func() {
		if recover() != nil {
			value = 7
		}
	}()
	return p.second()
}

//go:noinline
func deep(n int, pad [32]uint64) uint64 {
	if n == 0 {
		return pad[0]
	}
	pad[n&31]++
	return deep(n-1, pad) + 1
}

func serve() string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "answer to ", r.URL.Path) })
	go http.Serve(listener, handler)
	return "http://" + listener.Addr().String()
}

func check(right bool) {
	if !right {
		atomic.AddInt64(&wrong, 1)
	}
}

func main() {
	runtime.GOMAXPROCS(4)
	const spinners, turns = 16, 6000000
	spun := spin(turns, 5)
	expected := make([]uint64, 8)
	for n := range expected {
		expected[n] = churn(n)
	}
	server := serve()
	// Each collection suspends all goroutines.
	go func() {
		for {
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	}()
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var rounds int
		if _, err := fmt.Sscanf(in.Text(), "go %d", &rounds); err != nil {
			fmt.Println("unknown command", in.Text())
		}
		for round := 0; round < rounds; round++ {
			var group sync.WaitGroup
			for g := 0; g < 8; g++ {
				group.Add(2)
				go func(g int) {
					defer group.Done()
					check(churn(g) == expected[g])
					var pad [32]uint64
					check(deep(100, pad) >= 100)
					check(fault(nil) == 7 && fault(&pair{1, 2}) == 2)
					atomic.AddInt64(&recovered, 1)
				}(g)
				go func() {
					defer group.Done()
					for i := 0; i < 20; i++ {
						group.Add(1)
						go func() { atomic.AddInt64(&ended, 1); group.Done() }()
					}
				}()
			}
			for g := 0; g < spinners; g++ {
				group.Add(1)
				go func() {
					defer group.Done()
					check(spin(turns, 5) == spun)
				}()
			}
			group.Add(1)
			go func() {
				defer group.Done()
				answer, err := http.Get(server + "/page")
				if err != nil {
					check(false)
					return
				}
				body, _ := io.ReadAll(answer.Body)
				answer.Body.Close()
				check(string(body) == "answer to /page")
				atomic.AddInt64(&fetched, 1)
			}()
			group.Wait()
		}
		picked += int64(rounds) * 8 * 20000
		scaled += int64(rounds) * spinners * turns
		mixed := picked + scaled
		fmt.Printf("tally main.mix %d\ntally main.turn %d\ntally main.pick %d\ntally main.scale %d\ntally main.fault %d\nwrong %d\ndone\n",
			mixed, mixed, picked, scaled, 2*recovered, atomic.LoadInt64(&wrong))
	}
}
