package topic

// Message is a message as a subscriber gets it.
type Message struct {
	Topic    string
	Payload  []byte
	Delivery Delivery
}

// Delivery says what is known about the age of a message. Brokers repeat messages whenever a client connects, so not
// every delivery is an event that has just happened.
type Delivery int

// The kinds of Delivery.
const (
	// Direct: a client of the broker in the agent has just published it.
	Direct Delivery = iota
	// InSession: it has come through the agent's session at another broker as soon as it was published, and in order
	// with the other messages there.
	InSession
	// Waiting: it may have waited in that session while the agent was away. It is in order with the other messages
	// there, but may be older than what has reached the agent on another way since.
	Waiting
	// Retained: a copy that the broker keeps, and delivers at each subscription. Its age is unknown, and it may have
	// been delivered before.
	Retained
)
