package metamanager

import (
	"sync"

	"github.com/edgecore-io/edgecore/beehive/model"
)

// inHand is how many messages are worked on at once: enough for the store to gather them into shared
// transactions, and few enough that what waits, waits on the bus, where it can be seen.
const inHand = 64

// lanes works on messages: on those of one key in the order in which they came, on those of different keys side by
// side. A key has a goroutine as long as it has messages, so that an idle device has none.
type lanes struct {
	work func(*model.Message)
	// room has a token for each message in hand.
	room chan struct{}
	wg   sync.WaitGroup

	mu sync.Mutex
	// waiting is what comes after the message that is worked on, for each key that has one.
	waiting map[string][]*model.Message
}

func newLanes(work func(*model.Message)) *lanes {
	return &lanes{work: work, room: make(chan struct{}, inHand), waiting: map[string][]*model.Message{}}
}

// put takes a message on, and waits while too many are in hand.
func (l *lanes) put(key string, m *model.Message) {
	l.room <- struct{}{}
	l.mu.Lock()
	defer l.mu.Unlock()
	if queue, busy := l.waiting[key]; busy {
		l.waiting[key] = append(queue, m)
		return
	}
	l.waiting[key] = nil
	l.wg.Go(func() { l.run(key, m) })
}

// run works on the messages of a key until there are no more.
func (l *lanes) run(key string, m *model.Message) {
	for m != nil {
		l.work(m)
		<-l.room
		m = l.next(key)
	}
}

func (l *lanes) next(key string) *model.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	queue := l.waiting[key]
	if len(queue) == 0 {
		delete(l.waiting, key)
		return nil
	}
	l.waiting[key] = queue[1:]
	return queue[0]
}

// wait waits until all that was put is done.
func (l *lanes) wait() { l.wg.Wait() }
