// A Go program that times its own functions, while goroutines wait, are preempted, change threads, grow their stacks, panic and end.
//
// go N              16 goroutines call each function N times
// quick N           16 goroutines call `main.quick` N times each
//
// Prints for each function `tally NAME CALLS` and `ns NAME SUM`, and `tally main.thrower`, `tally main.quitter` for calls that never return.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

type account struct{ calls, ns int64 }

func (a *account) add(begin time.Time) {
	atomic.AddInt64(&a.ns, int64(time.Since(begin)))
	atomic.AddInt64(&a.calls, 1)
}

var parked, burnt, grown, rescued, thrown, quit, quicks account
var sink int64

// Waits for another goroutine, so that it goes on in any thread.
//
//go:noinline
func park(ask, answer chan int) {
	begin := time.Now()
	for i := 0; i < 3; i++ {
		ask <- i
		<-answer
	}
	parked.add(begin)
}

// Loops without a call, so that only a signal suspends it.
//
//go:noinline
func burn(rounds int64) {
	begin := time.Now()
	x := rounds
	for i := int64(0); i < rounds; i++ {
		x = x*3 + i
	}
	atomic.AddInt64(&sink, x)
	burnt.add(begin)
}

// Grows the stack, so that it moves while calls are open, and waits at the bottom.
//
//go:noinline
func grow(depth int, pad [16]int64) int64 {
	begin := time.Now()
	pad[depth%16]++
	sum := pad[3]
	if depth > 0 {
		sum += grow(depth-1, pad)
	} else {
		time.Sleep(2 * time.Millisecond)
	}
	grown.add(begin)
	return sum
}

// Recovers from a panic of a function below; its calls end by an ordinary return.
//
//go:noinline
func rescue() {
	begin := time.Now()
	defer func() {
		recover()
		rescued.add(begin)
	}()
	thrower(3)
}

//go:noinline
func thrower(depth int) {
	atomic.AddInt64(&thrown.calls, 1)
	if depth == 0 {
		time.Sleep(time.Millisecond)
		panic("nothing")
	}
	thrower(depth - 1)
	atomic.AddInt64(&sink, 1)
}

// Ends its goroutine.
//
//go:noinline
func quitter(depth int) {
	atomic.AddInt64(&quit.calls, 1)
	if depth == 0 {
		runtime.Goexit()
	}
	quitter(depth - 1)
	atomic.AddInt64(&sink, 1)
}

//go:noinline
func quick(x int64) int64 {
	if x%64 == 0 {
		runtime.Gosched()
	}
	return step(x) + 1
}

//go:noinline
func step(x int64) int64 { return x*3 + x>>1 }

func each(work func()) {
	var group sync.WaitGroup
	for g := 0; g < 16; g++ {
		group.Add(1)
		go func() {
			defer group.Done()
			work()
		}()
	}
	group.Wait()
}

func serve(ask, answer chan int) {
	for range ask {
		time.Sleep(300 * time.Microsecond)
		answer <- 1
	}
}

func round(n int64) {
	each(func() {
		ask, answer := make(chan int), make(chan int)
		go serve(ask, answer)
		for i := int64(0); i < n; i++ {
			park(ask, answer)
			burn(2000000)
			// The stack begins small in a new goroutine.
			done := make(chan int)
			go func() {
				grow(100, [16]int64{})
				done <- 1
			}()
			<-done
			rescue()
			go func() {
				defer func() { done <- 1 }()
				quitter(2)
			}()
			<-done
		}
		close(ask)
	})
	runtime.GC()
}

func main() {
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var n int64
		if _, err := fmt.Sscanf(in.Text(), "go %d", &n); err == nil {
			round(n)
		} else if _, err := fmt.Sscanf(in.Text(), "quick %d", &n); err == nil {
			each(func() {
				for i := int64(0); i < n; i++ {
					quick(i)
				}
			})
			quicks.calls += 16 * n
		} else {
			fmt.Println("unknown command", in.Text())
		}
		for _, f := range []struct {
			name string
			a    *account
		}{{"park", &parked}, {"burn", &burnt}, {"grow", &grown}, {"rescue", &rescued}} {
			fmt.Printf("tally main.%s %d\nns main.%s %d\n", f.name, f.a.calls, f.name, f.a.ns)
		}
		fmt.Printf("tally main.thrower %d\ntally main.quitter %d\ntally main.quick %d\nwrong 0\ndone\n", thrown.calls, quit.calls, quicks.calls)
	}
}
