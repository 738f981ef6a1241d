// SPDX-License-Identifier: GPL-2.0-or-later OR MIT
//! Trigger events and event masks (HW §6.5).

use core::fmt;

macro_rules! events {
    ($($(#[$m:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// Trigger event. Numbers and names are those of the hardware.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum TriggerEvent {
            $(
                $(#[$m])*
                #[doc = concat!("`", $name, "` (", stringify!($number), ").")]
                $variant = $number,
            )*
        }

        impl TriggerEvent {
            /// All events in numeric order.
            pub const ALL: [TriggerEvent; 32] = [$(TriggerEvent::$variant),*];

            /// Returns the hardware name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(TriggerEvent::$variant => $name,)*
                }
            }

            /// Returns the event with this number.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(TriggerEvent::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

events! {
    /// HyperTransport core error.
    Ht3CoreError = 0, "HT3_CORE_ERRRSP_STOMP_OR_DROP_INT";
    /// ECC error.
    EccError = 1, "ECC_ERROR";
    /// Uncorrectable ECC error.
    EccFatal = 2, "ECC_FATAL";
    /// Change of the PCIe link status.
    PcieCoreLinkStatus = 3, "PCIE_CORE_LINK_STATUS_INT";
    /// TLP for the register FIFO of the PCIe bridge.
    PcieBridgeRegfileInfo = 4, "PCIE_BRIDGE_PCIE_TO_HTOC_REGFILE_INFO";
    /// PCIe bridge error.
    PcieBridgeError = 5, "PCIE_BRIDGE_ERROR";
    /// PCIe core error.
    PcieCoreError = 6, "PCIE_CORE_ERROR";
    /// Expiry of the timer.
    TimerInterrupt = 7, "TIMER_INTERRUPT";
    /// Change of a GPIO input.
    GpioIrq = 8, "GPIO_IRQ";
    /// Packet discarded by the HTAX bridge.
    HtaxBridgeDiscarded = 9, "HTAX_BRIDGE_DISCARDED_INT";
    /// Assertion in the on-chip crossbar.
    HtaxAssertion = 10, "HTAX_ASSERTION";
    /// SMFU matching store is empty.
    SmfuMatchingStoreEmpty = 11, "SMFU_MATCHING_STORE_EMPTY";
    /// Timeout of an SMFU request.
    SmfuTimeout = 12, "SMFU_TIMEOUT";
    /// Error in a crossbar inport.
    XbarInport = 13, "XBAR_INPORT";
    /// Error in a crossbar outport.
    XbarOutport = 14, "XBAR_OUTPORT";
    /// Release of a barrier.
    BarrierReleased = 15, "BARRIER_RELEASED";
    /// Global interrupt.
    BarrierGlobalInterrupt = 16, "BARRIER_GLOBAL_INTERRUPT";
    /// Link port event.
    LinkPort = 17, "LINK_PORT";
    /// Link lane error.
    LinkMacLaneError = 18, "LINK_MAC_LANE_ERROR";
    /// Link retraining error.
    LinkMacRetrainError = 19, "LINK_MAC_RETRAIN_ERROR";
    /// Change of the link training status.
    LinkMacStatus = 20, "LINK_MAC_STATUS";
    /// Buffer queue error.
    BqError = 21, "BQ_ERROR";
    /// Error in a requester's write-combining buffer.
    WcbufError = 22, "WCBUF_ERROR";
    /// VELO message that requests an interrupt.
    VeloNotification = 23, "VELO_RF_NOTI_INTERRUPT_HANDLER_NOTI_INTERRUPT_VEC";
    /// VELO error.
    VeloError = 24, "VELO_ERROR";
    /// RMA notification that requests an interrupt.
    RmaNotification = 25, "RMA_RF_NOTI_INTERRUPT_HANDLER_NOTI_INTERRUPT_VEC";
    /// RMA history dump.
    RmaHistoryDump = 26, "RMA_HISTORY_DUMP";
    /// RMA error.
    RmaError = 27, "RMA_ERROR";
    /// Change of the network state.
    NwState = 28, "NW_STATE";
    /// Event 29, not assigned.
    Te29 = 29, "TE_29";
    /// Event 30, not assigned.
    Te30 = 30, "TE_30";
    /// Event 31, not assigned.
    Te31 = 31, "TE_31";
}

impl TriggerEvent {
    /// Returns the number of the event, 0…31.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for TriggerEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

bits! {
    /// Set of trigger events, in the format of `trigger_enable`.
    pub struct TriggerMask {
        /// Bit i selects event i.
        events / with_events: u32 [31:0];
    }
}

impl TriggerMask {
    /// Mask that the driver enables (HW §6.5).
    pub const DEFAULT: Self = Self(0x1FED_DFFD);
    /// Mask while the handler for crossbar outport errors runs. Event 14 is disabled.
    pub const DRAINING: Self = Self(0x1FED_9FFD);

    /// Returns whether `event` is in the set.
    pub const fn contains(self, event: TriggerEvent) -> bool {
        (self.0 >> event.number()) & 1 != 0
    }

    /// Returns the set with `event` added.
    #[must_use]
    pub const fn with(self, event: TriggerEvent) -> Self {
        Self(self.0 | (1 << event.number()))
    }

    /// Returns the set with `event` removed.
    #[must_use]
    pub const fn without(self, event: TriggerEvent) -> Self {
        Self(self.0 & !(1 << event.number()))
    }
}
