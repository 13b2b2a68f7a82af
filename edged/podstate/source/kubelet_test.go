package source

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

var manifestFlags = struct {
	files *int
	seed  *uint64
}{
	flag.Int("manifests", 3000, "how many random manifests TestAsAKubelet reads"),
	flag.Uint64("seed", 1, "the seed of the random manifests"),
}

// kubeletPod reads a manifest as pkg/kubelet/config does: the whole file is one document.
func kubeletPod(data []byte) (*v1.Pod, error) {
	text, err := utilyaml.ToJSON(data)
	if err != nil {
		return nil, err
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return nil, fmt.Errorf("it is a %T", obj)
	}
	return pod, nil
}

// encoded returns a text in an encoding, with a byte order mark.
func encoded(text, bom string) []byte {
	var order binary.AppendByteOrder
	switch bom {
	case bomUTF16LE:
		order = binary.LittleEndian
	case bomUTF16BE:
		order = binary.BigEndian
	default:
		return []byte(bom + text)
	}
	out := []byte(bom)
	for _, unit := range utf16.Encode([]rune(text)) {
		out = order.AppendUint16(out, unit)
	}
	return out
}

// asAKubelet checks that a file which a kubelet runs is run, and with the same pod. It reports whether a kubelet does.
func asAKubelet(t *testing.T, data []byte) bool {
	t.Helper()
	want, err := kubeletPod(data)
	if err != nil {
		return false
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	plain, _, err := Decode(text, "n")
	if err != nil {
		return false // what a pod may be is not the decoder's
	}
	got, _, err := Decode(data, "n")
	if _, trailing := errors.AsType[*TrailingError](err); err != nil && !trailing || len(got) == 0 {
		t.Errorf("Decode of %q = %v; a kubelet runs pod %s", data, err, want.Name)
		return true
	}
	for _, pod := range []*v1.Pod{plain[0], got[0]} {
		pod.UID = ""
		delete(pod.Annotations, AnnotationHash)
		delete(pod.Annotations, AnnotationSeen)
	}
	if diff := cmp.Diff(plain[0], got[0]); diff != "" {
		t.Errorf("Decode of %q, of a kubelet (-want +got):\n%s", data, diff)
	}
	return true
}

// TestKubeletManifests: each of these files runs under a kubelet.
func TestKubeletManifests(t *testing.T) {
	const flow = `{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}`
	crlf := strings.ReplaceAll(web, "\n", "\r\n")
	const inJSON = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},` +
		`"spec":{"containers":[{"name":"c","image":"i"}]}}`
	for name, data := range map[string][]byte{
		"directive":                        []byte("%YAML 1.1\n---\n" + web),
		"tag directive":                    []byte("%TAG !e! tag:example.com,2000:\n---\n" + web),
		"comment, directive":               []byte("# of the site\n%YAML 1.1\n# more\n---\n" + web),
		"document on the line of a marker": []byte("--- " + flow + "\n"),
		"tag on the line of a marker":      []byte("--- !!map\n" + web),
		"comment on the line of a marker":  []byte("--- # pod\n" + web),
		"end marker":                       []byte(web + "...\n"),
		"end marker, then text":            []byte(web + "...\nnot: [a pod\n"),
		"end marker, directive":            []byte(web + "...\n%YAML 1.1\n---\n" + strings.ReplaceAll(web, "web", "b")),
		"UTF-8 with a byte order mark":     encoded(web, bomUTF8),
		"byte order mark and marker":       encoded("---\n"+web, bomUTF8),
		"byte order mark and directive":    encoded("%YAML 1.1\n---\n"+web, bomUTF8),
		"JSON with a byte order mark":      encoded(inJSON, bomUTF8),
		"UTF-16 LE":                        encoded(web, bomUTF16LE),
		"UTF-16 BE":                        encoded(web, bomUTF16BE),
		"UTF-16, two documents":            encoded(web+"---\n"+strings.ReplaceAll(web, "web", "b"), bomUTF16LE),
		"CR LF":                            []byte(crlf),
		"CR LF, two documents":             []byte(crlf + "---\r\n" + strings.ReplaceAll(crlf, "web", "b")),
		"CR":                               []byte(strings.ReplaceAll(web, "\n", "\r")),
		"no last line end":                 []byte(strings.TrimSpace(web)),
		"then a service":                   []byte(web + "---\napiVersion: v1\nkind: Service\n"),
		"then no YAML":                     []byte(web + "---\na: [\n"),
		"then text":                        []byte(web + "--- text\n"),
		"then another directive":           []byte(web + "---\n%YAML 9.9\n---\na: 1\n"),
		"keys that repeat":                 []byte(web + "  restartPolicy: Never\n  restartPolicy: OnFailure\n"),
		"keys in another case":             []byte(web + "  HostNetwork: 5\n  hostpid: true\nMetadata: 1\n"),
		"anchors":                          []byte(web + "  nodeSelector: &a {b: c}\n  x: *a\n"),
		"unknown fields":                   []byte(web + "  extra: {a: 1}\nmore: [2]\n"),
		"three dashes in a text":           []byte(web + "    args:\n    - |\n      a\n      ---\n    - '---b'\n"),
	} {
		t.Run(name, func(t *testing.T) {
			if !asAKubelet(t, data) {
				_, err := kubeletPod(data)
				t.Errorf("a kubelet does not run %q: %v; want a file that it runs", data, err)
			}
		})
	}
}

// TestAsAKubelet: random files that a kubelet runs are run, and with the same pod.
func TestAsAKubelet(t *testing.T) {
	random := rand.New(rand.NewPCG(*manifestFlags.seed, 0))
	ran := 0
	for range *manifestFlags.files {
		if asAKubelet(t, randomManifest(random)) {
			ran++
		}
		if t.Failed() {
			return
		}
	}
	if ran < *manifestFlags.files/20 {
		t.Errorf("a kubelet runs %d of %d random files, want a twentieth at least", ran, *manifestFlags.files)
	}
	t.Logf("a kubelet runs %d of %d random files", ran, *manifestFlags.files)
}

// randomManifest puts a file together from what YAML has around and in a document.
func randomManifest(random *rand.Rand) []byte {
	one := func(texts ...string) string { return texts[random.IntN(len(texts))] }
	pod := func() string {
		name := one("a", "b", "c")
		block := "apiVersion: v1\nkind: Pod\nmetadata:\n  name: " + name +
			one("", " # name", "\n  labels: &l {x: 'y'}\n  annotations: *l") + "\nspec:\n" +
			one("", "", "", "", "", "  extra: 1\n", "  restartPolicy: Never\n", "  HOSTNETWORK: true\n",
				"  restartPolicy: Never\n  restartPolicy: Always\n", "  hostname: \"a\\\n---\"\n",
				"  hostname: 'a\n---'\n", "\tx: 1\n", "  # ...\n", "  hostname: host\u2028", "  hostname: host\u0085") +
			"  containers:\n" +
			one("  - name: c\n    image: i", "  - {name: c, image: 'i'}", "  - name: c\n    image: >-\n      i") +
			one("", "", "", "\n    args: [|\n---\n]", "\n    args:\n    - |\n      ---\n      ...",
				"\n    args: ['---', \"...\"]") +
			one("\n", "\n\n", "") + one("", "Kind: Pod\n", "status: {phase: Failed}\n")
		flow := `{apiVersion: v1, kind: Pod, metadata: {name: ` + name +
			`}, spec: {containers: [{name: c, image: i}]}}` + one("\n", "")
		inJSON := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name +
			`"},"spec":{"containers":[{"name":"c","image":"i"}]}}` + one("\n", "", " ", "\n\n")
		return one(block, flow, inJSON, "apiVersion: v1\nkind: List\nitems: []\n")
	}
	var text strings.Builder
	text.WriteString(one("", "", "", "", "", "\n", "# c\n", "...\n", "--- \n", "---\n", "\t\n", " \n"))
	for n := 1 + random.IntN(3); n > 0; n-- {
		text.WriteString(one("", "", "", "", "", "%YAML 1.1\n", "%YAML 1.2\n", "%TAG ! !\n", "# %YAML\n"))
		text.WriteString(one("", "", "---\n", "---\n", "---\n", "---\n", "--- ", "---\t", "---", "--- # c\n",
			"--- !!map\n", "----\n",
			" ---\n"))
		text.WriteString(one(pod(), pod(), pod(), pod(), pod(), pod(), "",
			"a: [\n", "- 1\n", "\x01", "text\n", "apiVersion: v1\nkind: Service\n"))
		text.WriteString(one("", "", "...\n", "... # end\n", "---\n", "\n", "%YAML 1.1\n", "\ufeff"))
	}
	out := text.String()
	switch random.IntN(6) {
	case 0:
		out = strings.ReplaceAll(out, "\n", "\r\n")
	case 1:
		out = strings.ReplaceAll(out, "\n", "\r")
	}
	return encoded(out, one("", "", "", bomUTF8, bomUTF16LE, bomUTF16BE))
}
