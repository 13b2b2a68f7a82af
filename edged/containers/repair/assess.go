package repair

import (
	"slices"
	"strings"
	"time"
)

// Stage is when a container failed.
type Stage int

// The stages.
const (
	// Create: the runtime could not make the container or sandbox.
	Create Stage = iota
	// Start: its process could not be started.
	Start
	// Exit: its process has ended.
	Exit
)

// Failure is how an attempt at a container failed.
type Failure struct {
	Stage Stage
	// Message is the runtime's error, or the last words of a container that ended.
	Message string
	// ExitCode and Lived are those of a container that ended.
	ExitCode int32
	Lived    time.Duration
}

// Suspicion says what a failure is worth as a sign of a damaged image.
type Suspicion int

// The suspicions, each more than the one before.
const (
	// None: the image is not what is wrong.
	None Suspicion = iota
	// Weak: a damaged image fails like this, and so does a wrong spec. It is worth comparing the image.
	Weak
	// Strong: what is wrong is the image, or its disk. Where nothing can be compared it is worth bringing the image
	// again.
	Strong
)

// shortLife is how long a container lives at the most that ends because of what it is.
const shortLife = 15 * time.Second

// strongSigns are words of runtimes and of the kernel that a whole image for this processor never has.
var strongSigns = []string{
	"exec format error", "input/output error", "structure needs cleaning", "bad message", // ENOEXEC EIO EUCLEAN EBADMSG
	"invalid elf header", "file too short", // the dynamic loader
	"blob not found", "failed to get reader from content store", "content digest", "wrong diff id", "unexpected eof",
	"invalid tar header", "gzip: invalid", "failed to extract layer",
	"missing parent", "failed to stat parent", "parent snapshot", "failed to mount rootfs", "failed to unpack",
}

// weakSigns are words that a wrong spec has, too.
var weakSigns = []string{
	"no such file or directory", "executable file not found", "not a directory", "is a directory", "permission denied",
	"invalid argument", "no users found", "unable to find user", "unable to find group",
	"no matching entries in passwd",
	"error while loading shared libraries", "cannot open shared object",
}

// exitSigns are the ends of programs whose files are not what they were: not executable, not found, and the signals
// SIGILL, SIGBUS, SIGSEGV; 128 is a runtime's for a start that failed.
var exitSigns = []int32{126, 127, 128, 132, 135, 139}

// Assess says what a failure is worth. unclean: the device went down without notice before this boot, and any program
// may have lost a file that it needs. It is pure.
func Assess(f Failure, unclean bool) Suspicion {
	said := strings.ToLower(f.Message)
	has := func(signs []string) bool {
		return slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(said, sign) })
	}
	if f.Stage != Exit {
		switch {
		case has(strongSigns):
			return Strong
		case has(weakSigns):
			return Weak
		}
		return None
	}
	switch {
	case f.Lived > shortLife || f.Lived < 0:
		return None
	case f.ExitCode != 0 && has(strongSigns):
		return Strong
	case unclean, slices.Contains(exitSigns, f.ExitCode), f.ExitCode != 0 && has(weakSigns):
		return Weak
	}
	return None
}
