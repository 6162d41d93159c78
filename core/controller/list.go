package controller

// links are something's neighbors in a list; it has them embedded.
type links[T any] struct{ before, behind *T }

func (l *links[T]) listed() *links[T] { return l }

// linked is a pointer to something that has links embedded.
type linked[T any] interface {
	*T
	listed() *links[T]
}

// linkedList is a list through the things in it: to add and to remove one allocates nothing, and takes as long whatever
// the list's length.
type linkedList[T any, P linked[T]] struct{ first, last *T }

// add appends x, which is in no list.
func (l *linkedList[T, P]) add(x *T) {
	at := P(x).listed()
	if at.before = l.last; at.before != nil {
		P(at.before).listed().behind = x
	} else {
		l.first = x
	}
	l.last = x
}

// remove removes x, which is in the list. It leaves x's links as they are.
func (l *linkedList[T, P]) remove(x *T) {
	at := P(x).listed()
	if at.before != nil {
		P(at.before).listed().behind = at.behind
	} else {
		l.first = at.behind
	}
	if at.behind != nil {
		P(at.behind).listed().before = at.before
	} else {
		l.last = at.before
	}
}

// each yields what is in the list. Only the one yielded may be removed meanwhile.
func (l *linkedList[T, P]) each(yield func(*T) bool) {
	for x := l.first; x != nil; {
		next := P(x).listed().behind
		if !yield(x) {
			return
		}
		x = next
	}
}
