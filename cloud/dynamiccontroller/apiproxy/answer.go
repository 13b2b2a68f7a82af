package apiproxy

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/edgecore-io/edgecore/pkg/acceptgzip"
	"github.com/edgecore-io/edgecore/pkg/shares"
)

const (
	// compressFrom is the size from which compressing saves more than it costs.
	compressFrom = 1 << 10
	// compressLevel saves most of what the best one does, for a third of its time.
	compressLevel = 3
	// nodeCompressors and allCompressors are how many answers are compressed at once, for one node and for all. Others
	// are sent as they are. A compressor takes 0.8 MiB.
	nodeCompressors = 8
	allCompressors  = 64
)

// compressors are shared by the answers.
type compressors struct {
	budget *shares.Budget[string]
	pool   sync.Pool // of *gzip.Writer
}

func newCompressors() *compressors {
	return &compressors{budget: shares.NewBudget[string](allCompressors, nodeCompressors)}
}

// takeWriter returns a compressor for a node, or nil if there is none left.
func (c *compressors) takeWriter(node string, to io.Writer) *gzip.Writer {
	if !c.budget.Take(node, 1) {
		return nil
	}
	w, ok := c.pool.Get().(*gzip.Writer)
	if !ok {
		w, _ = gzip.NewWriterLevel(nil, compressLevel) // its only error is of a wrong level
	}
	w.Reset(to)
	return w
}

// returnWriter takes a compressor back.
func (c *compressors) returnWriter(node string, w *gzip.Writer) {
	w.Reset(io.Discard)
	c.pool.Put(w)
	c.budget.Return(node, 1)
}

// mayCompress reports whether the answer to a request may be compressed here.
func mayCompress(r *http.Request) bool {
	return r.Method != http.MethodHead && !isWatch(r) && !isUpgrade(r) &&
		acceptgzip.By(r.Header)
}

// answer writes an answer, compressed if that is allowed and worth it. One goroutine at a time uses it.
type answer struct {
	http.ResponseWriter
	gzips *compressors
	node  string
	// compress: the client and the kind of request allow it.
	compress bool
	// code is the answer's status; 0 before there is one. decided: its header was passed on.
	code    int
	decided bool
	gzip    *gzip.Writer // nil: not compressed
}

// WriteHeader implements http.ResponseWriter. An answer whose length is not known yet decides with its first bytes
// whether it is compressed.
func (a *answer) WriteHeader(code int) {
	if code < http.StatusOK && code != http.StatusSwitchingProtocols {
		a.ResponseWriter.WriteHeader(code) // more follow
		return
	}
	if a.code > 0 {
		return
	}
	a.code = code
	header := a.Header()
	a.compress = a.compress && code >= http.StatusOK && code != http.StatusNoContent &&
		code != http.StatusNotModified && header.Get("Content-Encoding") == "" &&
		header.Get("Content-Range") == "" && isJSON(header.Get("Content-Type"))
	length, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64)
	if !a.compress || err == nil {
		a.decideEncoding(err == nil && length >= compressFrom)
	}
}

// isJSON reports whether a content type is JSON, also if it has parameters.
func isJSON(contentType string) bool {
	name, _, _ := strings.Cut(contentType, ";")
	return strings.TrimSpace(name) == "application/json"
}

// decideEncoding passes the header on.
func (a *answer) decideEncoding(large bool) {
	a.decided = true
	if a.compress && large {
		a.gzip = a.gzips.takeWriter(a.node, a.ResponseWriter)
	}
	if a.gzip != nil {
		header := a.Header()
		header.Del("Content-Length")
		header.Set("Content-Encoding", "gzip")
		header.Add("Vary", "Accept-Encoding")
	}
	a.ResponseWriter.WriteHeader(a.code)
}

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	if a.code == 0 {
		a.WriteHeader(http.StatusOK)
	}
	if !a.decided {
		a.decideEncoding(len(p) >= compressFrom)
	}
	if a.gzip != nil {
		return a.gzip.Write(p)
	}
	return a.ResponseWriter.Write(p)
}

// FlushError implements the method that http.ResponseController looks for.
func (a *answer) FlushError() error {
	if a.code > 0 && !a.decided {
		return nil // the first bytes decide about the header, and follow soon: this is no watch
	}
	if a.gzip != nil {
		if err := a.gzip.Flush(); err != nil {
			return err
		}
	}
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Unwrap lets http.ResponseController find the methods of the writer below.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// finish writes what is left of a complete answer.
func (a *answer) finish() error {
	if a.code > 0 && !a.decided {
		a.decideEncoding(false)
	}
	if a.gzip != nil {
		return a.gzip.Close()
	}
	return nil
}

// releaseWriter returns the compressor, also of an answer that is not complete.
func (a *answer) releaseWriter() {
	if a.gzip != nil {
		a.gzips.returnWriter(a.node, a.gzip)
		a.gzip = nil
	}
}
