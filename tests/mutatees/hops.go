// A Go program whose goroutines call `main.leaf` through known stacks: in frames of all sizes, in leaf functions without a frame, and on stacks
// that have grown.
//
// run               four goroutines begin: each lap calls `alpha` (three times `inner`), `beta` (once `inner`), `gamma` and `again` (which calls
//
//	itself twice); each `inner` and the others call `leaf`, which calls `tiny`
//
// rest              they end
// The answer has `calls WAY NUMBER` for the calls of `leaf`, which all take equally long, and `stack WAY FUNCTION...` by the runtime itself.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	alphaWay = iota
	betaWay
	gammaWay
	againWay
	waysCount
)

var names = [waysCount]string{"alpha", "beta", "gamma", "again"}
var calls [waysCount]int64
var stacks [waysCount]string
var once [waysCount]sync.Once
var stop int32
var wrong int64

// A leaf without a frame and without a check of the stack.
//
//go:noinline
func tiny(x uint64) uint64 { return x*6364136223846793005 + 1442695040888963407 }

// Asks the runtime for the stack, once for each way.
//
//go:noinline
func told(way int) {
	once[way].Do(func() {
		pcs := make([]uintptr, 300)
		frames := runtime.CallersFrames(pcs[:runtime.Callers(0, pcs)])
		var all []string
		for {
			frame, more := frames.Next()
			all = append(all, frame.Function)
			if !more {
				break
			}
		}
		for n, name := range all {
			if name == "main.leaf" {
				stacks[way] = strings.Join(all[n:], " ")
			}
		}
	})
}

//go:noinline
func leaf(way int, x uint64) uint64 {
	for i := 0; i < 5000; i++ {
		x = tiny(x)
	}
	if i := atomic.AddInt64(&calls[way], 1); i == 1 {
		told(way)
	}
	return x
}

//go:noinline
func inner(way int, x uint64) uint64 { return leaf(way, x) + 1 }

// A frame of some kilobytes.
//
//go:noinline
func alpha(x uint64) uint64 {
	var pad [400]uint64
	for i := 0; i < 3; i++ {
		x = inner(alphaWay, x) + 1
		pad[x%400] = x
	}
	return x ^ pad[5]
}

//go:noinline
func beta(x uint64) uint64 { return inner(betaWay, x) + 1 }

// A frame with a deferred call.
//
//go:noinline
func gamma(x uint64) (y uint64) {
	defer func() { y++ }()
	return leaf(gammaWay, x)
}

//go:noinline
func again(depth int, x uint64) uint64 {
	if depth == 0 {
		return leaf(againWay, x) + 1
	}
	return again(depth-1, x) + 1
}

//go:noinline
func laps(x uint64) uint64 {
	for atomic.LoadInt32(&stop) == 0 {
		before := x
		x = alpha(x)
		x = beta(x)
		x = gamma(x)
		x = again(2, x)
		if x == before {
			atomic.AddInt64(&wrong, 1)
		}
	}
	return x
}

func main() {
	fmt.Println("ready")
	var group sync.WaitGroup
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		switch in.Text() {
		case "run":
			atomic.StoreInt32(&stop, 0)
			for g := 0; g < 4; g++ {
				group.Add(1)
				go func(x uint64) {
					defer group.Done()
					laps(x)
				}(uint64(g))
			}
		case "rest":
			atomic.StoreInt32(&stop, 1)
			group.Wait()
			for way, name := range names {
				fmt.Printf("calls %s %d\nstack %s %s\n", name, calls[way], name, stacks[way])
			}
		default:
			fmt.Println("unknown command", in.Text())
		}
		fmt.Printf("wrong %d\ndone\n", atomic.LoadInt64(&wrong))
	}
}
