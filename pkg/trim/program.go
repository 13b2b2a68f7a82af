package trim

import (
	"math/bits"

	"k8s.io/klog/v2"
)

// programGrowth is how much more of the program's file must be mapped than the program needs at rest, to unmap its
// pages again.
const programGrowth = 4 << 20

// residentProgram decides when to unmap the pages of the program's file.
type residentProgram struct {
	checks int
	// unmapped is set if the last check unmapped pages.
	unmapped bool
	// atRest is the least that was mapped a check after pages were unmapped, in bytes; 0 if it is not known yet.
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

// due reports whether it is time to unmap pages: if many more are mapped than at rest, and at the first check, the
// second, the fourth and so on, since the program may have been busy at those before. mapped is how many bytes of files
// are mapped and in memory.
func (p *residentProgram) due(mapped uint64) bool {
	if p.unmapped && (p.atRest == 0 || mapped < p.atRest) {
		p.atRest = mapped
	}
	p.checks++
	p.unmapped = bits.OnesCount(uint(p.checks)) == 1 || p.atRest > 0 && mapped > p.atRest+programGrowth
	return p.unmapped
}
