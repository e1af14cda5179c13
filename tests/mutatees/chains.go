// Goroutines whose functions call each other, and the program's own account of who called whom.
//
// run SEED CALLS GOROUTINES   the goroutines make so many calls each. They wait for each other, change threads, grow their stacks, panic,
//                             recover, start goroutines, and end by Goexit.
//
// hold SEED CALLS GOROUTINES  the same goroutines wait in `main.c_hold` first
// release                     lets them go on, and waits for their end
// go SEED                     four goroutines make some calls
//
// At the end of goroutines, prints `call CHAIN N` for each chain of functions, from the outermost one on, and `ns main.c_task SUM`.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// Goroutines wait until it is closed, if there is one.
var gate chan int

// A chain of functions.
type node struct {
	calls    int64
	lock     sync.Mutex
	children map[string]*node
}

//go:noinline
func (n *node) called(name string) *node {
	n.lock.Lock()
	child := n.children[name]
	if child == nil {
		child = &node{children: map[string]*node{}}
		n.children[name] = child
	}
	n.lock.Unlock()
	atomic.AddInt64(&child.calls, 1)
	return child
}

// Random numbers and the calls that are left of a goroutine.
type dice struct {
	state uint64
	left  int
	group *sync.WaitGroup
	held  *sync.WaitGroup
}

//go:noinline
func (d *dice) below(limit uint64) uint64 {
	d.state = d.state*6364136223846793005 + 1442695040888963407
	return (d.state >> 33) % limit
}

var ns int64
var root = &node{children: map[string]*node{}}
var questions = make(chan chan int)

func answers() {
	for question := range questions {
		question <- 1
	}
}

//go:noinline
func wait() {
	question := make(chan int)
	questions <- question
	<-question
}

//go:noinline
func c_leaf(at *node, d *dice) {
	at.called("main.c_leaf")
	if d.below(4) == 0 {
		runtime.Gosched()
	}
}

//go:noinline
func c_wait(at *node, d *dice) {
	at = at.called("main.c_wait")
	wait()
	c_any(at, d)
	wait()
}

// Its frame is larger than the stack of a goroutine, which moves.
//
//go:noinline
func c_grow(at *node, d *dice) byte {
	at = at.called("main.c_grow")
	var room [8192]byte
	for i := range room {
		room[i] = byte(d.state)
	}
	c_any(at, d)
	return room[d.below(8192)]
}

//go:noinline
func c_throw(at *node, d *dice) {
	at = at.called("main.c_throw")
	c_leaf(at, d)
	panic(d)
}

func recovered() {
	recover()
}

//go:noinline
func c_rescue(at *node, d *dice) {
	at = at.called("main.c_rescue")
	defer recovered()
	c_throw(at, d)
}

//go:noinline
func c_after(at *node, d *dice) {
	at = at.called("main.c_after")
	c_rescue(at, d)
	c_any(at, d)
	c_leaf(at, d)
}

// It never returns.
//
//go:noinline
func quit(at *node, d *dice) {
	c_leaf(at, d)
	runtime.Goexit()
}

//go:noinline
func c_short(d *dice, quits bool) {
	defer d.group.Done()
	at := root.called("main.c_short")
	c_leaf(at, d)
	if quits {
		quit(at, d)
	}
	c_any(at, d)
}

//go:noinline
func c_start(at *node, d *dice) {
	at = at.called("main.c_start")
	d.group.Add(1)
	started := &dice{d.state ^ 99, 5, d.group, nil}
	go c_short(started, d.below(2) == 0)
	c_leaf(at, d)
}

//go:noinline
func c_any(at *node, d *dice) {
	at = at.called("main.c_any")
	for d.left > 0 && d.below(5) != 0 {
		d.left--
		switch d.below(8) {
		case 0:
			c_wait(at, d)
		case 1:
			c_grow(at, d)
		case 2:
			c_after(at, d)
		case 3:
			c_start(at, d)
		case 4:
			c_any(at, d)
		default:
			c_leaf(at, d)
		}
	}
}

//go:noinline
func c_hold(at *node, d *dice) {
	at = at.called("main.c_hold")
	d.held.Done()
	<-gate
	c_any(at, d)
}

//go:noinline
func c_task(d *dice) {
	defer d.group.Done()
	begin := time.Now()
	at := root.called("main.c_task")
	if gate != nil {
		c_hold(at, d)
	}
	for d.left > 0 {
		c_any(at, d)
	}
	atomic.AddInt64(&ns, int64(time.Since(begin)))
}

func told(chain string, n *node) {
	names := []string{}
	for name := range n.children {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		child := n.children[name]
		fmt.Printf("call %s%s %d\n", chain, name, child.calls)
		told(chain+name+"/", child)
	}
}

// Waits for the end of all goroutines, and prints the account.
func finish(group *sync.WaitGroup) {
	group.Wait()
	told("", root)
	fmt.Printf("ns main.c_task %d\n", atomic.SwapInt64(&ns, 0))
}

func main() {
	go answers()
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	group := &sync.WaitGroup{}
	for in.Scan() {
		var command string
		var seed uint64
		var calls, goroutines int
		fmt.Sscanf(in.Text(), "%s %d %d %d", &command, &seed, &calls, &goroutines)
		switch command {
		case "run", "hold", "go":
			if command == "go" {
				calls, goroutines = 50, 4
			}
			root.children = map[string]*node{}
			gate = nil
			if command == "hold" {
				gate = make(chan int)
			}
			held := &sync.WaitGroup{}
			for i := 0; i < goroutines; i++ {
				group.Add(1)
				held.Add(1)
				go c_task(&dice{seed + uint64(i)*7919, calls, group, held})
			}
			if command == "hold" {
				held.Wait()
			} else {
				finish(group)
			}
		case "release":
			close(gate)
			finish(group)
		default:
			fmt.Println("unknown command", in.Text())
		}
		fmt.Println("done")
	}
}
