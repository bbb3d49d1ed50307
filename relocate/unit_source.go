package relocate

// stepSource is step for S.
func stepSource(u unit, e event) (unit, []action, error) {
	if e.kind == evWrote {
		if e.verb != u.state.underway() {
			return u, nil, &illegalEvent{u.state, e}
		}
		if e.fate == unknown {
			return u, resolve(e.verb), nil
		}
		if e.fate == applied {
			u = u.seen(e.revision)
		}
	}
	if e.kind == evReadFailed || e.kind == evRecord {
		u.asking = false
	}
	switch u.state {
	case srcReserving:
		switch e.kind {
		case evReserved:
			return u.to(srcPreparing), write(wrPrepare), nil
		case evFailed, evGiveUp: // T may have reserved though its answer is lost
			return u.to(srcKept), do(doCancel, doKeep), nil
		}
	case srcPreparing:
		switch e.kind {
		case evWrote:
			return u.prepared(e)
		case evFailed, evGiveUp:
			u.giveUp = true
		}
	case srcSealing:
		switch e.kind {
		case evCaptured:
			return u.to(srcHanding), do(doHand), nil
		case evCaptureFailed, evFailed, evGiveUp:
			return u.to(srcAborting), write(wrAbort), nil
		}
	case srcHanding:
		switch e.kind {
		case evReady:
			return u.to(srcAccepting), write(wrAccept), nil
		case evFailed, evGiveUp:
			return u.to(srcAborting), write(wrAbort), nil
		}
	case srcAccepting:
		switch e.kind {
		case evWrote:
			return u.acceptance(e)
		case evFailed, evGiveUp:
			u.giveUp = true
		}
	case srcAborting:
		if e.kind == evWrote {
			return u.sourceAborted(e)
		}
	case srcPassed, srcParting:
		return u.passed(e)
	}
	return u, nil, nil
}

// prepared judges the result of the write of *preparing*. Whatever the record says, nothing was sealed.
func (u unit) prepared(e event) (unit, []action, error) {
	if e.fate == refused && e.view == viewPreparing { // it was applied after all
		u, e.fate = u.seen(e.revision), applied
	}
	if e.fate != applied {
		return u.to(srcKept), do(doCancel, doKeep), nil
	}
	if u.giveUp {
		return u.to(srcAborting), write(wrAbort), nil
	}
	return u.to(srcSealing), do(doSeal), nil
}

// acceptance judges the result of the write of *accepted*.
func (u unit) acceptance(e event) (unit, []action, error) {
	switch {
	case e.fate == applied && e.view == viewCommitted:
		return u.finished(e.h, doFree)
	case e.fate == applied:
		return u.to(srcPassed), do(doFree, doCutover), nil
	case e.fate == refused && e.view == viewPreparing, e.fate == notApplied && u.giveUp:
		return u.to(srcAborting), write(wrAbort), nil
	case e.fate == notApplied:
		return u, write(wrAccept), nil
	}
	return u.found(e)
}

// sourceAborted judges the result of the abort's write: S unseals only on a record that names it.
func (u unit) sourceAborted(e event) (unit, []action, error) {
	switch {
	case e.fate == applied && (e.view == viewNone || e.view == viewSource):
		return u.to(srcKept), do(doCancel, doKeep), nil
	case e.fate == notApplied, e.fate == refused && e.view == viewPreparing:
		return u, write(wrAbort), nil
	}
	return u.found(e)
}

// found goes on from what the record was found to say, whatever was tried.
func (u unit) found(e event) (unit, []action, error) {
	u = u.seen(e.revision)
	switch e.view {
	case viewSource: // T's abort was first
		return u.to(srcKept), do(doCancel, doKeep), nil
	case viewAccepted:
		return u.to(srcPassed), do(doFree, doCutover), nil
	case viewCommitted:
		return u.finished(e.h, doFree)
	}
	return u.to(srcLost), do(doLose), nil
}

// finished is the good end: h is known.
func (u unit) finished(h uint64, before ...actionKind) (unit, []action, error) {
	return u.to(srcDone), append(do(before...), action{kind: doFinish, h: h}), nil
}

// passed is S behind the boundary, where all that is left to learn is h.
func (u unit) passed(e event) (unit, []action, error) {
	switch e.kind {
	case evCommitted:
		return u.finished(e.h)
	case evTick:
		return u.ask()
	case evSilent:
		if u.state == srcParting {
			return u, nil, nil
		}
		return u.to(srcParting).ask()
	case evRecord:
		switch {
		case e.view == viewCommitted:
			return u.finished(e.h)
		case e.view == viewOther && e.revision > u.floor:
			return u.to(srcForsaken), do(doForsake), nil
		case u.state != srcParting:
			return u, nil, nil
		case e.revision < u.floor: // a replica that is behind
			return u.ask()
		}
		return u.to(srcForsaken), do(doForsake), nil
	case evReadFailed:
		if u.state == srcParting {
			return u.to(srcForsaken), do(doForsake), nil
		}
	}
	return u, nil, nil
}
