package clock

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// Boot is a moment on the machine's boot clock, which does not move when the wall clock is set.
type Boot struct {
	// ID identifies the boot.
	ID string
	// Uptime is the time since that boot. It goes on while the machine is suspended.
	Uptime time.Duration
}

// ReadBoot returns the current moment.
func ReadBoot() (Boot, error) {
	id, err := os.ReadFile(bootIDFile)
	if err != nil {
		return Boot{}, fmt.Errorf("ID of this boot: %w", err)
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return Boot{}, fmt.Errorf("boot clock: %w", err)
	}
	return Boot{ID: strings.TrimSpace(string(id)), Uptime: time.Duration(ts.Nano())}, nil
}
