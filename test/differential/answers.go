package differential

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Answer is what a port of the node answered to a request.
type Answer struct {
	Status string
	Header http.Header
	Body   []byte
}

// addAnswer adds an answer below a key: its status, its headers and its body. Numbers and times that move by themselves
// become values that are compared by their size.
func (t Trace) addAnswer(key, path string, a Answer, names Names) error {
	t.Add(key+"/status", a.Status)
	kind, _, _ := mime.ParseMediaType(a.Header.Get("Content-Type"))
	t.Add(key+"/type", kind)
	for name := range a.Header {
		if name != "Date" && name != "Content-Length" && name != "Content-Type" {
			t.Add(key+"/header/"+name, moving("", names.Replace(a.Header.Get(name))))
		}
	}
	ok := strings.HasPrefix(a.Status, "2")
	path, _, _ = strings.Cut(path, "?")
	switch {
	case ok && strings.HasPrefix(path, "/metrics"):
		t.addSeries(key, string(a.Body), names, path == "/metrics")
	case ok && (strings.HasPrefix(path, "/debug") || path == "/flagz" || path == "/statusz"):
		// What the agent says of its own process is its own.
	case ok && kind == "application/json" && json.Valid(a.Body):
		return t.addFields(key, a.Body, names, strings.HasPrefix(path, "/stats") || path == "/configz")
	case ok:
		t.Add(key+"/body", names.Replace(string(a.Body)))
	case !strings.HasPrefix(a.Status, "3"):
		t.Add(key+"/error", names.Replace(string(a.Body)))
	}
	return nil
}

var (
	indexes = regexp.MustCompile(`\[\d+\]`)
	bridges = regexp.MustCompile(`\bec-[0-9a-f]{8}\b`)
)

// addFields adds the fields of an answer, with their values or without.
func (t Trace) addFields(key string, body []byte, names Names, values bool) error {
	fields, err := Flatten("", rawJSON(body))
	if err != nil {
		return fmt.Errorf("%s: %w: %.200s", key, err, body)
	}
	for path, value := range fields {
		if strings.HasSuffix(path, "]") && !values || strings.HasPrefix(value, "[") {
			continue // an element of a list without a field, or the order of a list
		}
		name := indexes.ReplaceAllString(names.Replace(path), "[]")
		name = bridges.ReplaceAllString(name, "<runtime>")
		if !values {
			value = there
		}
		t.join(key+"/field"+name, moving(name, bridges.ReplaceAllString(names.Replace(value), "<runtime>")))
	}
	return nil
}

const there = "there"

// join adds a value of a path that several elements may have: it keeps the largest number, or all texts, in a fixed
// order.
func (t Trace) join(path, value string) {
	old := t[path]
	if len(old) == 1 {
		l, lok := number(old[0])
		r, rok := number(value)
		if lok && rok {
			t[path] = []string{about(max(l, r))}
			return
		}
	}
	if !slices.Contains(old, value) {
		t[path] = slices.Sorted(slices.Values(append(old, value)))
	}
}

// moving turns a value that moves by itself into one that is compared by its size: a number, a time, or a rate, which
// may be anything.
func moving(name, value string) string {
	if strings.HasSuffix(name, ".usageNanoCores") {
		return "a rate"
	}
	if n, err := strconv.ParseFloat(value, 64); err == nil && !strings.HasPrefix(name, ".kubeletconfig") {
		return about(n)
	}
	return value
}

// about is the value of a number that moves.
func about(n float64) string { return "about " + strconv.FormatFloat(n, 'g', -1, 64) }

// Numbers that move are alike if neither is more than a hundred times the other. Those below smallest are all alike.
const (
	smallest = 1000
	factor   = 100
)

// afterHook follows the seconds that a container has left after its preStop hook. Both nodes count whole seconds, so
// that one may count one more.
const afterHook = " s after a hook"

// alike reports whether two values are the same, numbers of the same size, or almost the same seconds after a hook.
func alike(left, right string) bool {
	if left == right {
		return true
	}
	if l, hooked := strings.CutSuffix(left, afterHook); hooked {
		return oneApart(l, strings.TrimSuffix(right, afterHook))
	}
	l, lok := number(left)
	r, rok := number(right)
	if !lok || !rok {
		return false
	}
	l, r = max(l, smallest), max(r, smallest)
	return max(l, r) <= factor*min(l, r)
}

func oneApart(left, right string) bool {
	l, err := strconv.Atoi(left)
	r, errRight := strconv.Atoi(right)
	return err == nil && errRight == nil && max(l, r)-min(l, r) == 1
}

func number(value string) (float64, bool) {
	text, found := strings.CutPrefix(value, "about ")
	if !found {
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil
}

var (
	labels  = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	comment = regexp.MustCompile(`^# (HELP|TYPE) (\w+) `)
)

// addSeries adds the series of a page of metrics, with their labels, values and types. The text of HELP is for people.
// Of the node's and other pods' series only what is the node's as a whole is added. own: only those that the kubelet
// and edgecore both have a reason to have.
func (t Trace) addSeries(key, page string, names Names, own bool) {
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if m := comment.FindStringSubmatch(line); m != nil {
			if m[1] == "TYPE" && (!own || strings.HasPrefix(m[2], "kubelet_")) {
				t.Add(key+"/type/"+m[2], line)
			}
			continue
		}
		name, value := seriesOf(line, names)
		if name == "" || own && !strings.HasPrefix(name, "kubelet_") {
			continue
		}
		if own {
			name, _, _ = strings.Cut(name, "{") // how many there are depends on what has happened
			value = there
		}
		t.join(key+"/series/"+name, value)
	}
}

// seriesOf reads a line of a page of metrics: the name with its labels, and the value. It returns "" for a series of a
// cgroup that is neither the node's nor a pod's.
func seriesOf(line string, names Names) (name, value string) {
	end := strings.LastIndex(line, "}")
	name, rest := line[:end+1], line[end+1:]
	if end < 0 {
		name, rest, _ = strings.Cut(line, " ")
	}
	fields := strings.Fields(rest)
	if len(fields) == 0 {
		return "", ""
	}
	metric, set, _ := strings.Cut(name, "{")
	var pairs []string
	pod, id := "", ""
	for _, m := range labels.FindAllStringSubmatch(set, -1) {
		label, v := m[1], bridges.ReplaceAllString(names.Replace(m[2]), "<runtime>")
		switch label {
		case "id":
			id = v
			if v != "/" && v != "" {
				v = "*"
			}
		case "pod":
			pod = v
		case "image", "name", "boot_id", "machine_id", "system_uuid", "device", "kernelVersion", "osVersion",
			"cadvisorVersion", "cadvisorRevision", "dockerVersion":
			if v != "" {
				v = "*"
			}
		}
		pairs = append(pairs, label+"="+v)
	}
	if id != "" && id != "/" && pod == "" && !strings.HasSuffix(id, "/kubepods") {
		return "", ""
	}
	slices.Sort(pairs)
	if len(pairs) > 0 {
		metric += "{" + strings.Join(pairs, ",") + "}"
	}
	n, err := strconv.ParseFloat(fields[0], 64)
	if err != nil {
		return metric, fields[0]
	}
	return metric, about(n)
}
