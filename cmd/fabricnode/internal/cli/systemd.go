package cli

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"natsfabric/fabric"
	"natsfabric/fence/watchdog"
)

// watched is the node's part in what systemd knows of it: a unit of Type=notify, and with WatchdogSec= one that is restarted
// when the node hangs. Without systemd it does nothing.
type watched struct{ feeder *watchdog.Feeder }

// watchOver says that the node is ready, and begins to feed the unit's watchdog. What it returns may be used when it fails.
func watchOver(node *fabric.Node, log *zap.Logger) (watched, error) {
	var w watched
	if err := watchdog.Notify("READY=1"); err != nil && !errors.Is(err, watchdog.ErrNoSystemd) {
		return w, fmt.Errorf("tell systemd that the node is ready: %w", err)
	}
	dog, err := watchdog.Systemd()
	if errors.Is(err, watchdog.ErrNoSystemd) {
		return w, nil
	}
	if err == nil {
		w.feeder, err = watchdog.Feed(watchdog.Config{Dog: dog, Healthy: node.Healthy, Unfed: func(err error) {
			log.Warn("systemd's watchdog was not fed", zap.Error(err))
		}})
	}
	if err != nil {
		return w, fmt.Errorf("systemd's watchdog: %w", err)
	}
	return w, nil
}

// stopping says that the stop has begun. A node that hangs in it is still to be found.
func (w watched) stopping() {
	_ = watchdog.Notify("STOPPING=1") // without systemd there is nobody to tell
}

func (w watched) end() error {
	if w.feeder == nil {
		return nil
	}
	return w.feeder.Stop()
}
