package trim

import "k8s.io/klog/v2"

const (
	// programGrowth is how much more of the program's file must be mapped than a check after its pages were unmapped,
	// to unmap them again.
	programGrowth = 4 << 20
	// programChecks is after how many checks they are unmapped in any case: the program may have been busy then.
	programChecks = 60
)

// residentProgram decides when to unmap the pages of the program's file.
type residentProgram struct {
	// since is the number of checks since pages were unmapped, this one included; 0 if they never were.
	since int
	// atRest is how many bytes of files were mapped a check after that.
	atRest uint64
}

// check unmaps pages if it is time to. It is called from time to time.
func (p *residentProgram) check() {
	mapped, err := mappedFiles()
	if err == nil && p.due(mapped) {
		err = unmapProgram()
	}
	if err != nil {
		klog.V(2).InfoS("Pages of the program stay mapped", "err", err)
	}
}

// due reports whether it is time to unmap pages. mapped is how many bytes of files are mapped and in memory.
func (p *residentProgram) due(mapped uint64) bool {
	if p.since == 1 {
		p.atRest = mapped
	}
	if p.since == 0 || p.since >= programChecks || mapped > p.atRest+programGrowth {
		p.since = 1
		return true
	}
	p.since++
	return false
}
