// A Go program: goroutines on small, moving stacks, garbage collection and preemption signals all the time.
//
// go N              16 goroutines call `main.work` N times each, `main.deep` recurses until its stack has grown
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
)

//go:noinline
func step(x int64) int64 { return x*3 + x>>1 }

// The function checks its stack because it makes a call, so a signal suspends no goroutine within its first five bytes.
//
//go:noinline
func work(x int64) int64 { return step(x) }

//go:noinline
func deep(n int, pad [64]int64) int64 {
	if n == 0 {
		return pad[0]
	}
	pad[n%64]++
	return deep(n-1, pad) + 1
}

func main() {
	var workTally, deepTally, wrong int64
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var n int64
		if _, err := fmt.Sscanf(in.Text(), "go %d", &n); err == nil {
			var group sync.WaitGroup
			for g := 0; g < 16; g++ {
				group.Add(1)
				go func() {
					defer group.Done()
					var garbage [][]byte
					for i := int64(0); i < n; i++ {
						if work(i) != i*3+i>>1 {
							atomic.AddInt64(&wrong, 1)
						}
						if i%1000 == 0 {
							garbage = append(garbage, make([]byte, 4096))
						}
					}
					var pad [64]int64
					pad[0] = 5
					if d := deep(200, pad); d < 200 {
						atomic.AddInt64(&wrong, 1)
					}
					atomic.AddInt64(&workTally, n)
					atomic.AddInt64(&deepTally, 201)
					runtime.KeepAlive(garbage)
				}()
			}
			group.Wait()
			runtime.GC()
		} else {
			fmt.Println("unknown command", in.Text())
		}
		fmt.Printf("tally main.work %d\ntally main.deep %d\nwrong %d\ndone\n", workTally, deepTally, wrong)
	}
}
