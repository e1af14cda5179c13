// A Go program that answers requests in many goroutines, and keeps its own account of the slow ones.
//
// run SEED N G      G goroutines answer N requests each
// The answer has `calls N` and `left N` for the requests that were answered, and that a panic has ended, and for each that took 10 ms or more
// `slow NUMBER NS CALLS`: its time by the program's clock, and the calls that it has made.
// wait N G          G goroutines wait N times each: for a lock that others hold, for a time, for another goroutine, and for a connection
// The answer has `waited FUNCTION NS` for each of the functions in which they wait: the time by the program's clock, added up.
package main

import (
	"bufio"
	"fmt"
	"math/rand"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

type request struct {
	number int
	random *rand.Rand
	calls  strings.Builder
	used   uint64
}

var answered, left, wrong int64
var slow []string
var lock sync.Mutex
var parts = make(chan chan int)

//go:noinline
func (r *request) begin(name string) {
	text := r.calls.String()
	if len(text) > 0 && text[len(text)-1] != '(' {
		r.calls.WriteByte(' ')
	}
	r.calls.WriteString(name)
	r.calls.WriteByte('(')
}

//go:noinline
func (r *request) end() { r.calls.WriteByte(')') }

// Two functions that write a number in digits.
//
//go:noinline
func zero(r *request) {
	r.begin("main.zero")
	r.used++
	r.end()
}

//go:noinline
func one(r *request) {
	r.begin("main.one")
	r.used += 2
	r.end()
}

// A frame that makes the stack grow.
//
//go:noinline
func grow(r *request, depth int) {
	var pad [200]uint64
	r.begin("main.grow")
	pad[r.number%200] = r.used
	if depth > 0 {
		grow(r, depth-1)
	}
	r.used += pad[r.number%200]
	r.end()
}

// Another goroutine answers, so this one may go on in another thread.
//
//go:noinline
func fetch(r *request, pause time.Duration) {
	r.begin("main.fetch")
	if pause > 0 {
		time.Sleep(pause)
	}
	answer := make(chan int)
	parts <- answer
	r.used += uint64(<-answer)
	r.end()
}

//go:noinline
func load(r *request) {
	r.begin("main.load")
	for i := r.random.Intn(4); i >= 0; i-- {
		fetch(r, 0)
	}
	switch r.number % 100 {
	case 50, 70, 90:
		fetch(r, 12*time.Millisecond)
	}
	if r.number%100 == 70 {
		panic("as planned")
	}
	r.end()
}

//go:noinline
func store(r *request) {
	r.begin("main.store")
	for i := r.random.Intn(3); i > 0; i-- {
		runtime.Gosched()
		zero(r)
	}
	r.end()
}

//go:noinline
func serve(r *request, nested bool) {
	if nested {
		r.begin("main.serve")
	}
	for bit := 0; bit < 16; bit++ {
		if r.number>>bit&1 == 0 {
			zero(r)
		} else {
			one(r)
		}
	}
	if !nested && r.number%100 == 90 {
		serve(r, true)
	}
	if r.random.Intn(8) == 0 {
		grow(r, r.random.Intn(40))
	}
	load(r)
	store(r)
	if nested {
		r.end()
	}
}

//go:noinline
func answer(r *request) {
	begin := time.Now()
	defer func() {
		ns := time.Since(begin).Nanoseconds()
		if recover() != nil {
			atomic.AddInt64(&left, 1)
			return
		}
		atomic.AddInt64(&answered, 1)
		if ns >= 10000000 {
			calls := strings.ReplaceAll(r.calls.String(), "()", "")
			lock.Lock()
			slow = append(slow, fmt.Sprintf("slow %d %d %s", r.number, ns, calls))
			lock.Unlock()
		}
	}()
	serve(r, false)
}

var waited [4]int64
var held sync.Mutex

func took(way int, begin time.Time) { atomic.AddInt64(&waited[way], time.Since(begin).Nanoseconds()) }

//go:noinline
func waitForLock(n int) {
	begin := time.Now()
	held.Lock()
	took(0, begin)
}

//go:noinline
func waitForTime(n int) {
	begin := time.Now()
	time.Sleep(time.Millisecond)
	took(1, begin)
}

//go:noinline
func waitForAnswer(answer chan int) {
	begin := time.Now()
	<-answer
	took(2, begin)
}

//go:noinline
func waitForConnection(connection net.Conn) {
	begin := time.Now()
	var one [1]byte
	if _, err := connection.Read(one[:]); err != nil {
		atomic.AddInt64(&wrong, 1)
	}
	took(3, begin)
}

// Waits in each way, n times.
func waits(n int) {
	near, far := pair()
	for i := 0; i < n; i++ {
		waitForLock(i)
		waitForTime(i)
		held.Unlock()
		answer := make(chan int)
		go func() {
			time.Sleep(time.Millisecond)
			answer <- 1
		}()
		waitForAnswer(answer)
		go func() {
			time.Sleep(time.Millisecond)
			far.Write([]byte{1})
		}()
		waitForConnection(near)
	}
	near.Close()
	far.Close()
}

// Two ends of a connection.
func pair() (net.Conn, net.Conn) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer listener.Close()
	near, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		panic(err)
	}
	far, err := listener.Accept()
	if err != nil {
		panic(err)
	}
	return near, far
}

func main() {
	for i := 0; i < 4; i++ {
		go func() {
			for answer := range parts {
				answer <- 1
			}
		}()
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var seed int64
		var n, g int
		if _, err := fmt.Sscanf(in.Text(), "wait %d %d", &n, &g); err == nil {
			waited = [4]int64{}
			var group sync.WaitGroup
			for i := 0; i < g; i++ {
				group.Add(1)
				go func() {
					defer group.Done()
					waits(n)
				}()
			}
			group.Wait()
			for way, name := range []string{"waitForLock", "waitForTime", "waitForAnswer", "waitForConnection"} {
				fmt.Printf("waited main.%s %d\n", name, waited[way])
			}
			fmt.Printf("wrong %d\ndone\n", wrong)
			continue
		}
		if _, err := fmt.Sscanf(in.Text(), "run %d %d %d", &seed, &n, &g); err != nil {
			fmt.Println("unknown command", in.Text())
		}
		answered, left, slow = 0, 0, nil
		var group sync.WaitGroup
		for i := 0; i < g; i++ {
			group.Add(1)
			go func(i int) {
				defer group.Done()
				for k := 0; k < n; k++ {
					number := i*n + k
					answer(&request{number: number, random: rand.New(rand.NewSource(seed + int64(number)))})
				}
			}(i)
		}
		group.Wait()
		fmt.Printf("calls %d\nleft %d\n%s\nwrong %d\ndone\n", answered, left, strings.Join(slow, "\n"), wrong)
	}
}
