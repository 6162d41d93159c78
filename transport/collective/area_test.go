package collective

import (
	"testing"

	"github.com/openpathways/pathways/core/status/statustest"
	"github.com/openpathways/pathways/transport/pages"
	"github.com/openpathways/pathways/transport/pages/pagestest"
)

// Long blocks lie in huge pages, also behind a short one, whose bytes stay, and again when the area has been idle.
func TestLongBlocksLieInHugePages(t *testing.T) {
	pagestest.Collapses(t)
	board := statustest.Value(NewInprocBoard(2)).OK(t)
	defer board.Close()
	b := statustest.Value(board.Open(0)).OK(t)
	defer b.Close()
	const reader = 1 << 1
	for range 2 {
		_, short := b.area.take(granule, reader)
		short[0] = 7
		statustest.Equal(t, pagestest.Huge(t, short), 0, "bytes in huge pages for a short block")
		at, long := b.area.take(pages.Huge, reader)
		clear(long)
		statustest.Equal(t, short[0], 7, "the byte of the short block")
		statustest.Equal(t, at.at, granule, "the long one begins at")
		statustest.Equal(t, pagestest.Huge(t, long), 2*pages.Huge, "bytes in huge pages for both blocks")
		statustest.Equal(t, b.Memory(), 2*pages.Huge, "bytes that count")
		b.area.lost(1)
		b.area.trim()
		b.area.trim() // nothing was taken since
		b.area.dead = 0
		statustest.Equal(t, b.Memory(), 0, "bytes that count after a rest")
		statustest.Equal(t, pagestest.Huge(t, long), 0, "bytes in huge pages after a rest")
	}
}
