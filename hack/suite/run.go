package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build-output and build-fail
	FailedBuild string // of the fail of a package whose build failed: the ImportPath of the failure
	Test        string
	Elapsed     float64 // seconds
	Output      string
}

// outcome is how a test or a package ended: "pass", "fail" or "skip".
type outcome struct {
	pkg, test string // test is "" for the package
	action    string
	elapsed   time.Duration
	output    string // kept of what did not pass
}

// collector turns the events of one `go test` into outcomes.
type collector struct {
	outcomes []outcome
	// output holds what each test that has not ended has printed.
	output map[string][]byte
	// tails holds the last lines of each package, from all its tests: a panic, a time-out or a race between two tests
	// belongs to no single test. A build counts as a package.
	tails map[string][]byte
}

// maxOutput bounds what is kept of one test's output, and of the end of a package's, in bytes.
const maxOutput = 64 << 10

// add takes an event, and returns the outcome that it completes.
func (c *collector) add(e event) (outcome, bool) {
	if c.output == nil {
		c.output, c.tails = map[string][]byte{}, map[string][]byte{}
	}
	if e.Package == "" {
		e.Package = e.ImportPath
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output", "build-output":
		c.tails[e.Package] = tail(append(c.tails[e.Package], e.Output...), maxOutput)
		if e.Test != "" {
			c.output[key] = tail(append(c.output[key], e.Output...), maxOutput)
		}
	case "pass", "fail", "skip":
		o := outcome{
			pkg:     e.Package,
			test:    e.Test,
			action:  e.Action,
			elapsed: time.Duration(e.Elapsed * float64(time.Second)),
		}
		switch {
		case e.Action == "pass":
		case e.Test != "":
			o.output = string(c.output[key])
		case e.FailedBuild != "":
			o.output = string(c.tails[e.FailedBuild])
		default:
			o.output = string(c.tails[e.Package])
		}
		delete(c.output, key)
		c.outcomes = append(c.outcomes, o)
		return o, true
	}
	return outcome{}, false
}

// tail returns the end of a text, of at most limit bytes, once the text is twice as long.
func tail(text []byte, limit int) []byte {
	if len(text) <= 2*limit {
		return text
	}
	return slices.Clone(text[len(text)-limit:])
}

// result is what an area's jobs came to.
type result struct {
	jobs     []jobResult
	commands []commandResult
}

type jobResult struct {
	job      job
	outcomes []outcome
	err      error // of the go command
}

type commandResult struct {
	line string
	err  error
}

// runJobs runs jobs in their order, at most slots of them at a time, and prints each package's outcome when it is
// there.
func runJobs(ctx context.Context, jobs []job, env []string, slots int) *result {
	r := &result{jobs: make([]jobResult, len(jobs))}
	free := make(chan struct{}, slots)
	var group sync.WaitGroup
	var printing sync.Mutex
	for i, j := range jobs {
		weight := 1
		if j.alone {
			weight = slots
		}
		for range weight {
			select {
			case free <- struct{}{}:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			r.jobs[i] = jobResult{job: j, err: errors.New("not run")}
			continue
		}
		group.Go(func() {
			defer func() {
				for range weight {
					<-free
				}
			}()
			outcomes, err := runJob(ctx, j, env, func(text string) {
				printing.Lock()
				defer printing.Unlock()
				fmt.Print(text)
			})
			r.jobs[i] = jobResult{job: j, outcomes: outcomes, err: err}
		})
	}
	group.Wait()
	return r
}

// runJob runs one `go test`.
func runJob(ctx context.Context, j job, env []string, say func(string)) ([]outcome, error) {
	args := j.arguments()
	say(j.display() + "\n")
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args[1:]...)...)
	cmd.Env = slices.Concat(os.Environ(), env, j.environment())
	endWithContext(cmd)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &collector{}
	readErr := read(out, func(e event) {
		if o, done := c.add(e); done {
			say(o.line())
		}
	})
	err = cmd.Wait()
	if readErr != nil {
		return c.outcomes, fmt.Errorf("read what go test prints: %w", readErr)
	}
	if err != nil && stderr.Len() > 0 {
		err = fmt.Errorf("%w\n%s", err, &stderr)
	}
	return c.outcomes, err
}

// endWithContext has the whole process group of a command end with its context. Tests that are interrupted clean up
// nothing; see sweep.
func endWithContext(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
}

// read calls add for each event of a stream. Lines that are no events are of the go command itself.
func read(from io.Reader, add func(event)) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if len(line) > 0 && json.Unmarshal(line, &e) == nil {
			add(e)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
