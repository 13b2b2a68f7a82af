package runtime

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/edgecore-io/edgecore/edged/containers/crilog"
)

// Limits of termination messages, in bytes: of the file, of log lines that stand in for it (documented with
// TerminationMessagePath), and of both with what the runtime says. A status has 12 KiB for all containers of a pod.
const (
	maxMessage      = 4096
	maxMessageLines = 80
	maxMessageLog   = 2048
	maxMessageAll   = 12 << 10
)

// reasonCannotRun is why a container has ended that could not be started: it has no logs.
const reasonCannotRun = "ContainerCannotRun"

// MessagesDir is the folder with the termination messages of a pod's containers, which they can fill.
func (r *Runtime) MessagesDir(pod *v1.Pod) string {
	return filepath.Join(r.opts.RootDir, "pods", string(pod.UID), "containers")
}

// messageFile makes the file on the node into which an attempt at a container writes its termination message,
// and returns its path; "" when the container has none. Files of attempts before the last are removed.
func (r *Runtime) messageFile(pod *v1.Pod, c *v1.Container, attempt uint32) (string, error) {
	if c.TerminationMessagePath == "" {
		return "", nil
	}
	dir := filepath.Join(r.MessagesDir(pod), c.Name)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return "", fmt.Errorf("folder of termination messages: %w", err)
	}
	path := filepath.Join(dir, strconv.FormatUint(uint64(attempt), 10))
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("folder of termination messages: %w", err)
	}
	for _, e := range entries {
		if n, err := strconv.ParseUint(e.Name(), 10, 32); err == nil && uint32(n) == attempt-1 {
			continue // its message is still shown
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return "", fmt.Errorf("old termination message: %w", err)
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return "", fmt.Errorf("file of termination message: %w", err)
	}
	defer f.Close()
	// Any user of the container may write it, whatever the umask of the agent is.
	return path, f.Chmod(0o666)
}

// terminationMessage returns what the runtime says of a container that has ended, and what it left behind.
func terminationMessage(st *runtimeapi.ContainerStatus) string {
	n := parseNotes(st.Annotations)
	text, failed := "", false
	for _, m := range slices.Backward(st.Mounts) { // the message's own mount is the last
		if n.messagePath == "" || m.ContainerPath != n.messagePath {
			continue
		}
		var err error
		if text, err = readMessage(m.HostPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
			text, failed = fmt.Sprintf("Error on reading termination log %s: %v", m.HostPath, err), true
		}
		break
	}
	if text == "" && !failed && n.messageFromLogs && st.ExitCode != 0 && st.Reason != reasonCannotRun {
		var err error
		if text, err = logTail(st.LogPath); err != nil {
			text = fmt.Sprintf("Error on reading termination message from logs: %v", err)
		}
	}
	if st.Message != "" && text != "" {
		text = ": " + text
	}
	return truncate(st.Message+text, maxMessageAll)
}

// readMessage reads the end of the file that a container wrote. The container may have replaced nothing but
// the content (the file is bound), yet it may have made it huge.
func readMessage(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("not a regular file")
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-maxMessage), maxMessage))
	if err != nil {
		return "", err
	}
	return strings.ToValidUTF8(string(data), "?"), nil
}

// logTail returns the last lines of a CRI log, at most 80 lines or 2 KiB.
func logTail(path string) (string, error) {
	text, err := crilog.Last(path, maxMessageLines, maxMessageLog)
	return strings.ToValidUTF8(string(text), "?"), err
}

func truncate(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	return strings.ToValidUTF8(text[:max(limit, 0)], "")
}
