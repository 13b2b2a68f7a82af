package nodecert

import (
	"errors"
	"fmt"
)

// Reason says in one word why a device has no good certificate.
type Reason string

// The reasons.
const (
	// NoToken: there is no certificate yet, and nothing to get one with.
	NoToken Reason = "NoToken"
	// BadToken: the token is damaged, or the cloud does not accept it.
	BadToken Reason = "BadToken"
	// TokenExpired: the token has expired.
	TokenExpired Reason = "TokenExpired"
	// WrongNode: the token is for another node.
	WrongNode Reason = "WrongNode"
	// WrongCA: the server is not the cloud that the token is from.
	WrongCA Reason = "WrongCA"
	// WrongHost: the cloud's certificate is not for the address that the device dialed.
	WrongHost Reason = "WrongHost"
	// Clock: this device's clock, or the cloud's, is far off.
	Clock Reason = "Clock"
	// Unreachable: no answer.
	Unreachable Reason = "Unreachable"
	// NameTaken: the cloud has a node of this name.
	NameTaken Reason = "NameTaken"
	// Busy: the cloud is busy.
	Busy Reason = "Busy"
	// Refused: the cloud refuses for another reason.
	Refused Reason = "Refused"
	// Expired: the certificate has expired.
	Expired Reason = "Expired"
	// BadFiles: the files are damaged or cannot be written.
	BadFiles Reason = "BadFiles"
)

// Problem is why a device has no good certificate, in a sentence that says what to do.
type Problem struct {
	Reason Reason
	Text   string
	Err    error // the cause; may be nil
}

func (p *Problem) Error() string { return p.Text }

func (p *Problem) Unwrap() error { return p.Err }

func problem(reason Reason, err error, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Text: fmt.Sprintf(format, args...), Err: err}
}

// ReasonOf returns the reason of an error of this package; empty for other errors.
func ReasonOf(err error) Reason {
	var p *Problem
	if errors.As(err, &p) {
		return p.Reason
	}
	return ""
}
