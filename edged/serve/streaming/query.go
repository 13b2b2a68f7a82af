package streaming

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// logQuery is what a client asks of a log: the options of the API's log subresource.
type logQuery struct {
	follow, previous, timestamps bool
	// tail is how many lines; below 0 all.
	tail int64
	// since leaves out what is older; zero nothing.
	since time.Time
	// limit is in bytes; 0 is none.
	limit          int64
	stdout, stderr bool
}

// parseLogQuery reads a query as the kubelet does. It is pure.
func parseLogQuery(query url.Values, now time.Time) (logQuery, error) {
	q := logQuery{tail: -1, stdout: true, stderr: true}
	for name, into := range map[string]*bool{
		"follow": &q.follow, "previous": &q.previous, "timestamps": &q.timestamps,
	} {
		if query.Has(name) {
			v := strings.ToLower(query.Get(name))
			*into = v != "false" && v != "0"
		}
	}
	tail := query.Get("tailLines")
	if old := query.Get("tail"); old != "" {
		tail = strings.TrimSuffix(old, "all")
	}
	var err error
	if q.tail, err = number("tailLines", tail, 0, -1); err != nil {
		return logQuery{}, err
	}
	if q.limit, err = number("limitBytes", query.Get("limitBytes"), 1, 0); err != nil {
		return logQuery{}, err
	}
	if q.since, err = parseSince(query.Get("sinceSeconds"), query.Get("sinceTime"), now); err != nil {
		return logQuery{}, err
	}
	switch stream := query.Get("stream"); stream {
	case "", v1.LogStreamAll:
	case v1.LogStreamStdout, v1.LogStreamStderr:
		if q.tail >= 0 {
			return logQuery{}, invalid("tailLines and stream=%s exclude each other", stream)
		}
		q.stdout, q.stderr = stream == v1.LogStreamStdout, stream == v1.LogStreamStderr
	default:
		return logQuery{}, invalid("stream %q: want All, Stdout or Stderr", stream)
	}
	return q, nil
}

func parseSince(seconds, at string, now time.Time) (time.Time, error) {
	if seconds != "" && at != "" {
		return time.Time{}, invalid("at most one of sinceTime and sinceSeconds may be given")
	}
	if at != "" {
		t, err := time.Parse(time.RFC3339, at)
		if err != nil {
			return time.Time{}, refuse(http.StatusBadRequest, "sinceTime %q: want a time such as 2026-01-02T15:04:05Z",
				at)
		}
		return t, nil
	}
	n, err := number("sinceSeconds", seconds, 1, 0)
	if err != nil || n == 0 {
		return time.Time{}, err
	}
	return now.Add(-time.Duration(min(n, maxSince)) * time.Second), nil
}

// maxSince is more than any log holds, and no more than a Duration does.
const maxSince = 100 * 365 * 24 * 3600

// number reads a number. What is none is a bad request, one that is too small an invalid one.
func number(name, text string, least, none int64) (int64, error) {
	if text == "" {
		return none, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, refuse(http.StatusBadRequest, "%s %q: want a number of at least %d", name, text, least)
	}
	if n < least {
		return 0, invalid("%s %q: want a number of at least %d", name, text, least)
	}
	return n, nil
}

func invalid(format string, args ...any) error {
	return refuse(http.StatusUnprocessableEntity, "%s", fmt.Sprintf(format, args...))
}
