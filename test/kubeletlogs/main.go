// Command kubeletlogs prints logs with the kubelet's own reader (k8s.io/cri-client/pkg/logs), for tests that compare it
// with edgecore's. It reads requests from its input, one in a line, and answers each with a line.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/cri-client/pkg/logs"
	"k8s.io/klog/v2"
)

// request says what to print of which log.
type request struct {
	Path       string
	Tail       *int64
	Limit      *int64
	Since      time.Time
	Timestamps bool
	// Stdout and Stderr say which streams are asked for.
	Stdout, Stderr bool
}

// answer is what the reader has printed.
type answer struct {
	Stdout, Stderr []byte
	Err            string
}

func main() {
	klog.InitFlags(nil)
	_ = flag.Set("logtostderr", "false") // each damaged line would be logged
	klog.SetOutput(io.Discard)
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var r request
		err := in.Decode(&r)
		if errors.Is(err, io.EOF) {
			return
		}
		if err == nil {
			err = out.Encode(read(r))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func read(r request) (a answer) {
	var stdout, stderr bytes.Buffer
	var out, errOut io.Writer
	if r.Stdout {
		out = &stdout
	}
	if r.Stderr {
		errOut = &stderr
	}
	opts := &logs.LogOptions{TailLines: r.Tail, LimitBytes: r.Limit, Since: r.Since, Timestamp: r.Timestamps}
	if err := logs.ReadLogs(context.Background(), r.Path, "", opts, nil, out, errOut); err != nil {
		a.Err = err.Error()
	}
	a.Stdout, a.Stderr = stdout.Bytes(), stderr.Bytes()
	return a
}
