package relocate

// stepTarget is step for T.
func stepTarget(u unit, e event) (unit, []action, error) {
	if e.kind == evWrote {
		if e.verb != u.state.underway() {
			return u, nil, &illegalEvent{u.state, e}
		}
		if e.fate == unknown && u.state != dstClearing {
			return u, resolve(e.verb), nil
		}
	}
	if e.kind == evReadFailed || e.kind == evRecord {
		u.asking = false
	}
	switch u.state {
	case dstReserved:
		switch e.kind {
		case evCargo:
			return u.to(dstLoading).seen(e.revision), do(doLoad), nil
		case evGiveUp, evCancel: // nothing was restored, and S cannot accept without relay-ready
			return u.to(dstDropped), do(doDrop), nil
		}
	case dstLoading:
		switch e.kind {
		case evLoaded:
			return u.to(dstReady), do(doReady), nil
		case evLoadFailed, evGiveUp, evCancel:
			return u.to(dstDropped), do(doDrop, doFail), nil
		}
	case dstReady:
		return u.waiting(e)
	case dstAborting:
		if e.kind == evWrote {
			return u.targetAborted(e)
		}
	case dstCommitting:
		if e.kind == evWrote {
			return u.committed(e)
		}
	case dstOpening:
		switch e.kind {
		case evOpened:
			return u.open()
		case evOpenFailed: // FO-5d: on this T, and never anywhere else
			return u, []action{{kind: doOpen, h: e.h}}, nil
		case evAcked:
			u.acked = true
		case evTick:
			if !u.acked {
				return u, do(doNotify), nil
			}
		}
	case dstOpen:
		switch e.kind {
		case evTick:
			return u, do(doNotify), nil
		case evAcked:
			return u.to(dstClearing), write(wrClear), nil
		case evSilent: // S is gone: the move stays in the record until the next one
			return u.to(dstDone), nil, nil
		}
	case dstClearing:
		if e.kind == evWrote { // a move that stays in the record harms nobody
			return u.to(dstDone), nil, nil
		}
	}
	return u, nil, nil
}

// waiting is T after relay-ready: from here on only L says that the instance is not needed.
func (u unit) waiting(e event) (unit, []action, error) {
	switch e.kind {
	case evCut:
		return u.to(dstCommitting), write(wrCommit), nil
	case evFallback:
		u.late = true
		return u.ask()
	case evTick:
		if u.late {
			return u.ask()
		}
	case evCancel: // S's word decides nothing
		return u.ask()
	case evGiveUp:
		return u.to(dstAborting), write(wrAbort), nil
	case evRecord:
		switch {
		case e.view == viewAccepted && u.late:
			return u.to(dstCommitting), write(wrCommit), nil
		case e.revision > u.floor && (e.view == viewSource || e.view == viewOther):
			return u.to(dstDropped), do(doDrop), nil
		}
	}
	return u, nil, nil
}

// targetAborted judges the result of T's abort.
func (u unit) targetAborted(e event) (unit, []action, error) {
	switch {
	case e.fate == refused && e.view == viewAccepted:
		return u.to(dstCommitting), write(wrCommit), nil
	case e.fate == notApplied, e.fate == refused && e.view == viewPreparing:
		return u, write(wrAbort), nil
	}
	return u.to(dstDropped), do(doDrop), nil
}

// committed judges the result of the commit: dispatch opens only on a commit that is known.
func (u unit) committed(e event) (unit, []action, error) {
	switch {
	case e.fate == applied && e.view != viewOther, e.fate == refused && e.view == viewCommitted:
		return u.to(dstOpening), []action{{kind: doOpen, h: e.h}, {kind: doNotify}}, nil
	case e.fate == notApplied, e.fate == refused && e.view == viewAccepted:
		return u, write(wrCommit), nil
	case e.fate == refused && e.view == viewPreparing:
		return u.to(dstReady), nil, nil
	}
	return u.to(dstDropped), do(doDrop), nil
}

// open is T that serves.
func (u unit) open() (unit, []action, error) {
	if u.acked {
		return u.to(dstClearing), write(wrClear), nil
	}
	return u.to(dstOpen), nil, nil
}
