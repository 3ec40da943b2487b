/* Registers of nRF52840: of USBD by their offset, of the rest of the chip by their address. */
#ifndef USB_REGISTERS_H
#define USB_REGISTERS_H

#include <stdint.h>

#define USB_STARTEPIN(n) (0x004u + 4u * (n))
#define USB_STARTEPOUT(n) (0x028u + 4u * (n))
#define USB_EP0RCVOUT 0x04cu
#define USB_EP0STATUS 0x050u
#define USB_EP0STALL 0x054u
#define USB_USBRESET 0x100u
#define USB_ENDEPIN(n) (0x108u + 4u * (n))
#define USB_EP0DATADONE 0x128u
#define USB_ENDEPOUT(n) (0x130u + 4u * (n))
#define USB_EP0SETUP 0x15cu
#define USB_EPDATA 0x160u
#define USB_EVENTCAUSE 0x400u
#define USB_READY 0x800u
#define USB_EPDATASTATUS 0x46cu
#define USB_BMREQUESTTYPE 0x480u
#define USB_BREQUEST 0x484u
#define USB_WVALUEL 0x488u
#define USB_WINDEXL 0x490u
#define USB_WLENGTHL 0x498u
#define USB_SIZE_EPOUT(n) (0x4a0u + 4u * (n))
#define USB_ENABLE 0x500u
#define USB_PULLUP 0x504u
#define USB_DTOGGLE 0x50cu
#define USB_DATA0 0x100u
#define USB_EPINEN 0x510u
#define USB_EPOUTEN 0x514u
#define USB_EPSTALL 0x518u
#define USB_STALL 0x100u
#define USB_EPIN_PTR(n) (0x600u + 20u * (n)) /* then the largest count */
#define USB_EPOUT_PTR(n) (0x700u + 20u * (n))
#define USB_TASKS_HELD 0xc1cu /* errata 199 */

#define CLOCK_START 0x40000000u
#define CLOCK_STARTED 0x40000100u
#define POWER_USB 0x40000438u
#define POWER_USB_CABLE 1u
#define POWER_USB_READY 2u
#define CHIP_LOCK 0x4006ec00u
#define CHIP_171 0x4006ec14u
#define CHIP_187 0x4006ed14u
#define CHIP_ID_LOW 0x10000060u
#define CHIP_ID_HIGH 0x10000064u

#if defined(RLX_MODEL_OF_CHIP)
/* A model of the chip instead of the chip, on the host. */
uint32_t chip_read(uint32_t address);
void chip_write(uint32_t address, uint32_t value);
void chip_write_pointer(uint32_t address, const void *value);
#else
/* What is in RAM is written before a register says so, and read after one does. */
static uint32_t chip_read(uint32_t address)
{
    uint32_t value = *(volatile uint32_t *)address;
    __asm__ volatile("dmb" : : : "memory");
    return value;
}

static void chip_write(uint32_t address, uint32_t value)
{
    __asm__ volatile("dmb" : : : "memory");
    *(volatile uint32_t *)address = value;
}

static void chip_write_pointer(uint32_t address, const void *value)
{
    chip_write(address, (uint32_t)value);
}
#endif

#define usb_read(offset) chip_read(0x40027000u + (offset))
#define usb_write(offset, value) chip_write(0x40027000u + (offset), value)
#define usb_write_pointer(offset, value) chip_write_pointer(0x40027000u + (offset), value)

#endif
