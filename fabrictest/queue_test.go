package fabrictest

import (
	"testing"
	"time"
)

func TestQueueBoundsWaitingBytes(t *testing.T) {
	q := newQueue()
	it := item{frame: frame{raw: make([]byte, maxWaiting/4)}}
	pushed := make(chan int, 100)
	go func() {
		defer close(pushed)
		for i := 0; q.push(it); i++ {
			pushed <- i
		}
	}()
	Eventually(t, readyTimeout, "a full queue", func() bool { return len(pushed) == 4 })
	<-time.After(50 * time.Millisecond)
	if n := len(pushed); n != 4 {
		t.Fatalf("%d quarters of the bound wait", n)
	}
	if _, ok := q.pop(); !ok {
		t.Fatal("nothing to pop")
	}
	Eventually(t, readyTimeout, "room for one more", func() bool { return len(pushed) == 5 })
	q.abort()
	for range pushed {
	}
	if _, ok := q.pop(); ok {
		t.Fatal("popped from an aborted queue")
	}
}

func TestQueueBoundsMessagesKeptApart(t *testing.T) {
	q := newQueue()
	for range maxAside {
		q.setAside()
	}
	more := make(chan struct{})
	go func() {
		q.setAside()
		close(more)
	}()
	select {
	case <-more:
		t.Fatal("too many kept apart")
	case <-time.After(50 * time.Millisecond):
	}
	q.putBack(item{}, false)
	<-more

	// What is kept apart still comes after the end of the source.
	q.finish()
	for range maxAside - 1 {
		q.putBack(item{}, false)
	}
	popped := make(chan bool, 1)
	go func() {
		it, ok := q.pop()
		popped <- ok && it.late
	}()
	select {
	case <-popped:
		t.Fatal("the end came before what is kept apart")
	case <-time.After(50 * time.Millisecond):
	}
	q.putBack(item{late: true}, true)
	if !<-popped {
		t.Fatal("the last one did not come")
	}
	if _, ok := q.pop(); ok {
		t.Fatal("there is no end")
	}
}
