package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output and build-fail
	Test       string
	Elapsed    float64 // seconds
	Output     string
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
	output   map[string]*strings.Builder // of what has not ended, by package and test
}

// maxOutput bounds what is kept of one test's output, in bytes: its beginning and its end say most.
const maxOutput = 64 << 10

// add takes an event, and returns the outcome that it completes.
func (c *collector) add(e event) (outcome, bool) {
	if c.output == nil {
		c.output = map[string]*strings.Builder{}
	}
	if e.Package == "" { // of the build
		e.Package, _, _ = strings.Cut(e.ImportPath, " ")
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output", "build-output":
		b := c.output[key]
		if b == nil {
			b = &strings.Builder{}
			c.output[key] = b
		}
		b.WriteString(e.Output)
	case "pass", "fail", "skip":
		o := outcome{pkg: e.Package, test: e.Test, action: e.Action, elapsed: time.Duration(e.Elapsed * float64(time.Second))}
		if b := c.output[key]; b != nil && e.Action != "pass" {
			o.output = middle(b.String(), maxOutput)
		}
		delete(c.output, key)
		c.outcomes = append(c.outcomes, o)
		return o, true
	}
	return outcome{}, false
}

// middle takes out the middle of a text that is longer than limit.
func middle(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return text[:limit/2] + "\n[... cut ...]\n" + text[len(text)-limit/2:]
}

// result is what an area's jobs came to.
type result struct {
	jobs     []jobResult
	commands []commandResult
}

type jobResult struct {
	job      job
	outcomes []outcome
	took     time.Duration
	err      error // of the go command
}

type commandResult struct {
	line string
	err  error
}

// runJobs runs jobs in their order, at most slots of them at a time, and prints each package's outcome when it is there.
func runJobs(ctx context.Context, jobs []job, env []string, slots int) *result {
	r := &result{jobs: make([]jobResult, len(jobs))}
	free := make(chan struct{}, slots)
	var group sync.WaitGroup
	var printing sync.Mutex
	for i, j := range jobs {
		free <- struct{}{}
		group.Go(func() {
			defer func() { <-free }()
			began := time.Now()
			outcomes, err := runJob(ctx, j, env, func(text string) {
				printing.Lock()
				defer printing.Unlock()
				fmt.Print(text)
			})
			r.jobs[i] = jobResult{job: j, outcomes: outcomes, took: time.Since(began), err: err}
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
	// An interrupted run lets its tests remove what they have started.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
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
